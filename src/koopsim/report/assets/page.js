// Draws the page's charts from the JSON inside each figure, and answers to mouse, touch and keyboard. No libraries.
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const tip = document.getElementById("tip");

  const make = (tag, attributes = {}, text) => {
    const node = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const element = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const shown = (v) => {
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size >= 1e5 || size < 1e-3) return v.toExponential(2).replace(/\.?0+e/, "e");
    return String(Number(v.toPrecision(4)));
  };

  function say(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
  }
  const hush = () => { tip.hidden = true; };

  // ---------------------------------------------------------------- scales

  function linearTicks(low, high, wanted, least = 0) {
    const raw = Math.max(least, (high - low) / wanted), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || 10 * power;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  }

  // Decades; between them as many marks as a narrow range needs to have at least two.
  function logTicks(low, high, wanted) {
    const first = Math.floor(low), last = Math.ceil(high), every = Math.max(1, Math.ceil((last - first) / wanted));
    for (const parts of last - first > 2 ? [[1]] : [[1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
      const found = [];
      for (let e = first; e <= last; e += every)
        for (const part of parts) {
          const place = e + Math.log10(part);
          if (place >= low - 1e-9 && place <= high + 1e-9) found.push(Number((part * 10 ** e).toPrecision(3)));
        }
      if (found.length > 1) return found;
    }
    return linearTicks(10 ** low, 10 ** high, 3);
  }

  // A map from values to pixels; on a logarithmic axis what is not positive has no place.
  function scale(values, log, from, to, wanted, whole) {
    const known = values.filter((v) => !log || v > 0).map((v) => (log ? Math.log10(v) : v));
    let low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 1;
    if (high - low < 1e-12 * Math.max(1, Math.abs(high))) {
      const half = log ? 0.5 : 0.05 * Math.abs(high) || 0.5;
      low -= half; high += half;
    }
    const room = 0.04 * (high - low);
    low -= room; high += room;
    const place = (v) => from + ((log ? Math.log10(v) : v) - low) / (high - low) * (to - from);
    const ticks = log ? logTicks(low, high, wanted) : linearTicks(low, high, wanted, whole ? 1 : 0);
    return { place, has: (v) => !log || v > 0, ticks };
  }

  // The complex plane: one unit is as long across as down, and the unit circle is always in sight.
  function planeScales(points, left, right, top, bottom) {
    const xs = [-1.1, 1.1, ...points.map((p) => p[0])], ys = [-1.1, 1.1, ...points.map((p) => p[1])];
    const middle = (v) => (Math.min(...v) + Math.max(...v)) / 2, range = (v) => 1.08 * (Math.max(...v) - Math.min(...v));
    const unit = Math.min((right - left) / range(xs), (bottom - top) / range(ys));
    const axis = (centre, half, at, sign) => ({
      place: (v) => at + sign * (v - centre) * unit, has: () => true, ticks: linearTicks(centre - half, centre + half, 5),
    });
    return [
      axis(middle(xs), (right - left) / 2 / unit, (left + right) / 2, 1),
      axis(middle(ys), (bottom - top) / 2 / unit, (top + bottom) / 2, -1),
    ];
  }

  // ---------------------------------------------------------------- a chart

  function chart(figure) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const state = { x: 0, xLog: spec.x[0].log, yLog: spec.y.log, off: new Set() };
    const switches = element("div", "switches"), holder = element("div"), legend = element("div", "legend");
    figure.append(switches, holder, legend);

    function choice(options, current, choose) {
      const group = element("span");
      options.forEach((text, i) => {
        const button = element("button", "", text);
        button.type = "button";
        button.setAttribute("aria-pressed", String(i === current()));
        button.onclick = () => {
          choose(i);
          [...group.children].forEach((b, j) => b.setAttribute("aria-pressed", String(j === current())));
          draw();
        };
        group.append(button);
      });
      switches.append(group);
    }
    if (spec.x.length > 1)
      choice(spec.x.map((axis) => spec.columns[axis.column]), () => state.x, (i) => { state.x = i; state.xLog = spec.x[i].log; });
    if (spec.switches) {
      choice(["log y", "linear y"], () => (state.yLog ? 0 : 1), (i) => { state.yLog = i === 0; });
      choice(["log x", "linear x"], () => (state.xLog ? 0 : 1), (i) => { state.xLog = i === 0; });
    }
    const names = [...new Set(spec.series.map((s) => s.name))];
    for (const name of names) {
      const button = element("button", "s" + spec.series.find((s) => s.name === name).slot, name);
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.onclick = () => {
        state.off.has(name) ? state.off.delete(name) : state.off.add(name);
        button.setAttribute("aria-pressed", String(!state.off.has(name)));
        draw();
      };
      legend.append(button);
    }

    let width = 0;
    function draw() {
      width = holder.clientWidth || 480;
      const height = spec.plane ? Math.min(width, 380) : Math.max(220, Math.min(300, width * 0.62));
      const right = width - 12, top = 8, bottom = height - 38;
      const { column, whole } = spec.x[state.x], visible = spec.series.filter((s) => !state.off.has(s.name));
      const all = visible.flatMap((s) => s.points.map((p) => [p[column], p[spec.y.column]]));
      const levels = spec.rule && visible.length ? [spec.rule[0]] : [];
      const upright = scale([...all.map((p) => p[1]), ...levels], state.yLog, bottom, top, 6, spec.y.whole);
      const left = spec.plane ? 46 : 26 + 6.3 * Math.max(...upright.ticks.map((t) => shown(t).length), 2);
      const [x, y] = spec.plane ? planeScales(all, left, right, top, bottom) : [
        scale(all.map((p) => p[0]), state.xLog, left, right, width < 420 ? 4 : 7, whole), upright,
      ];
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title });
      for (const t of x.ticks) {
        svg.append(make("line", { class: "grid", x1: x.place(t), x2: x.place(t), y1: top, y2: bottom }));
        svg.append(make("text", { x: x.place(t), y: bottom + 15, "text-anchor": "middle" }, shown(t)));
      }
      for (const t of y.ticks) {
        svg.append(make("line", { class: "grid", x1: left, x2: right, y1: y.place(t), y2: y.place(t) }));
        svg.append(make("text", { x: left - 6, y: y.place(t) + 4, "text-anchor": "end" }, shown(t)));
      }
      svg.append(make("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, spec.columns[column]));
      svg.append(make("text", { transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, spec.columns[spec.y.column]));
      if (spec.plane)
        svg.append(make("circle", { class: "unit", cx: x.place(0), cy: y.place(0), r: x.place(1) - x.place(0) }));
      for (const level of levels.filter(y.has)) {
        svg.append(make("line", { class: "rule", x1: left, x2: right, y1: y.place(level), y2: y.place(level) }));
        svg.append(make("text", { x: right, y: y.place(level) - 4, "text-anchor": "end" }, spec.rule[1]));
      }
      const placed = [];
      for (const series of visible) {
        const group = make("g", { class: "s" + series.slot }), steps = [];
        series.points.forEach((point, i) => {
          if (!x.has(point[column]) || !y.has(point[spec.y.column])) return;
          const at = { cx: x.place(point[column]), cy: y.place(point[spec.y.column]), series, point, i };
          if (spec.marks === "steps" && steps.length) steps.push(`H${at.cx.toFixed(1)}V${at.cy.toFixed(1)}`);
          else steps.push(`${steps.length ? "L" : "M"}${at.cx.toFixed(1)} ${at.cy.toFixed(1)}`);
          placed.push(at);
          if (spec.marks !== "line" || series.points.length < 25)
            group.append(make("circle", { class: "dot", cx: at.cx, cy: at.cy, r: spec.marks === "dots" ? 3.6 : 2.2 }));
        });
        if (spec.marks !== "dots" && steps.length) group.prepend(make("path", { d: steps.join("") }));
        svg.append(group);
      }
      const near = make("circle", { class: "near", r: 5, visibility: "hidden" });
      svg.append(near);
      const leave = () => { near.setAttribute("visibility", "hidden"); hush(); };
      const move = (event) => {
        const box = svg.getBoundingClientRect(), ratio = width / box.width;
        const px = (event.clientX - box.left) * ratio, py = (event.clientY - box.top) * ratio;
        let best = null, least = 45 ** 2;
        for (const at of placed) {
          const distance = (at.cx - px) ** 2 + (at.cy - py) ** 2;
          if (distance < least) { least = distance; best = at; }
        }
        if (!best) return leave();
        near.setAttribute("class", "near s" + best.series.slot);
        near.setAttribute("cx", best.cx); near.setAttribute("cy", best.cy); near.setAttribute("visibility", "visible");
        const lines = [best.series.name + (best.series.detail ? ", " + best.series.detail : "")];
        spec.columns.forEach((name, c) => lines.push(`${name} ${shown(best.point[c])}`));
        if (best.series.texts[best.i]) lines.push(best.series.texts[best.i]);
        say(lines.join("\n"), event.clientX, event.clientY);
      };
      svg.addEventListener("pointermove", move);
      svg.addEventListener("pointerdown", move);
      svg.addEventListener("pointerleave", leave);
      holder.replaceChildren(svg);
    }
    draw();
    new ResizeObserver(() => { if (Math.abs(holder.clientWidth - width) > 1) draw(); }).observe(holder);
  }

  // ---------------------------------------------------------------- truth against model

  function compare(figure) {
    const stage = figure.querySelector(".stage"), range = figure.querySelector("input");
    const buttons = [...figure.querySelectorAll(".models button")], label = figure.querySelector(".right");
    range.addEventListener("input", () => stage.style.setProperty("--at", range.value + "%"));
    buttons.forEach((button, chosen) => {
      button.onclick = () => {
        buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(i === chosen)));
        figure.querySelectorAll(".over").forEach((image, i) => { image.hidden = i !== chosen; });
        label.textContent = button.dataset.name;
      };
    });
  }

  // ---------------------------------------------------------------- the page

  function themes() {
    const button = document.getElementById("theme"), root = document.documentElement, order = ["auto", "light", "dark"];
    const kept = { get: () => { try { return localStorage.getItem("koopsim-theme"); } catch { return null; } },
      set: (v) => { try { localStorage.setItem("koopsim-theme", v); } catch { /* a file opened from disk may not keep it */ } } };
    let at = Math.max(0, order.indexOf(kept.get()));
    const put = () => {
      at ? root.setAttribute("data-theme", order[at]) : root.removeAttribute("data-theme");
      button.textContent = "theme: " + order[at];
    };
    button.onclick = () => { at = (at + 1) % 3; kept.set(order[at]); put(); };
    put();
  }

  function contents() {
    const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) {
          links.forEach((a) => a.classList.remove("here"));
          links.get(entry.target.id)?.classList.add("here");
        }
    }, { rootMargin: "-10% 0px -80% 0px" });
    document.querySelectorAll("section[id]").forEach((section) => watch.observe(section));
  }

  themes();
  document.querySelectorAll(".chart").forEach(chart);
  document.querySelectorAll(".compare").forEach(compare);
  document.querySelectorAll("[data-tip]").forEach((node) => {
    node.addEventListener("pointermove", (event) => say(node.dataset.tip, event.clientX, event.clientY));
    node.addEventListener("pointerleave", hush);
  });
  contents();
})();
