/* The page to play with: drag eigenvalues, split or join a Jordan block, watch orbit, verdict and limit change. */
"use strict";

(() => {
  const root = document.getElementById("play");
  if (!root) return;
  const SNAP = 0.035, STEPS = 60, REACH = 1.45;
  const WORDS = {
    origin: ["settles at zero", "Every eigenvalue is inside the circle: A^l goes to 0, whatever you start from."],
    "fixed-point": ["settles at a point", "1 is an eigenvalue and all others are inside: A^l goes to the projector U V below."],
    "invariant-set": ["never settles, never grows", "An eigenvalue on the circle other than 1 keeps turning: the state ends on a set that A maps onto itself."],
    divergent: ["blows up", "An eigenvalue is outside the circle, or a Jordan block sits on it: A^l grows without bound."],
  };
  const START = () => [{ re: 1, im: 0, size: 1 }, { re: 0.62, im: 0.6, size: 1 }];
  const EXAMPLES = {
    "settles at a point": START,
    "settles at zero": () => [{ re: 0.7, im: 0, size: 1 }, { re: 0.3, im: 0.75, size: 1 }],
    oscillates: () => [{ re: 0.5, im: 0, size: 1 }, { re: Math.cos(0.7), im: Math.sin(0.7), size: 1 }],
    flips: () => [{ re: -1, im: 0, size: 1 }, { re: 0.5, im: 0.4, size: 1 }],
    "blows up": () => [{ re: 0.8, im: 0, size: 1 }, { re: 0.75, im: 0.72, size: 1 }],
    "Jordan block on the circle": () => [{ re: 1, im: 0, size: 2 }, { re: 0.4, im: 0.3, size: 1 }],
  };
  let blocks = START(), chosen = 1;

  const make = (tag, inside, parent, attributes = {}) => {
    const node = document.createElement(tag);
    if (inside) node.textContent = inside;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    parent.appendChild(node);
    return node;
  };
  const bar = make("div", "", root, { class: "play-bar" });
  for (const [name, of] of Object.entries(EXAMPLES)) {
    make("button", name, bar, { type: "button", class: "play-button" }).onclick = () => { blocks = of(); chosen = 0; show(); };
  }
  const views = make("div", "", root, { class: "play-views" });
  const plane = make("canvas", "", views, { width: 640, height: 640, tabindex: 0, role: "application",
    "aria-label": "The complex plane. Tab chooses an eigenvalue, arrow keys move it, J joins or splits a Jordan block." });
  const space = make("canvas", "", views, { width: 640, height: 640, role: "img", "aria-label": "The orbit, two coordinates of it" });
  const tools = make("div", "", root, { class: "play-bar" });
  const joining = make("button", "", tools, { type: "button", class: "play-button" });
  const word = make("p", "", root, { class: "play-verdict", role: "status" });
  const why = make("p", "", root);
  const numbers = make("pre", "", root);

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim() || "#888";
  const spot = (re, im, c) => [((re + REACH) / (2 * REACH)) * c.width, ((REACH - im) / (2 * REACH)) * c.height];

  function snapped(re, im) {
    im = Math.abs(im) < SNAP ? 0 : Math.abs(im);
    const r = Math.hypot(re, im);
    if (Math.abs(r - 1) < SNAP) { re /= r; im /= r; }
    if (Math.abs(re - 1) < SNAP && im < SNAP) { re = 1; im = 0; }
    return { re: Math.max(-REACH, Math.min(REACH, re)), im: Math.min(REACH, im) };
  }

  function drawPlane() {
    const g = plane.getContext("2d"), w = plane.width;
    g.clearRect(0, 0, w, w);
    g.lineWidth = 2;
    g.strokeStyle = colour("--play-faint");
    g.beginPath(); g.moveTo(0, w / 2); g.lineTo(w, w / 2); g.moveTo(w / 2, 0); g.lineTo(w / 2, w); g.stroke();
    g.strokeStyle = colour("--play-line");
    g.beginPath(); g.arc(w / 2, w / 2, w / (2 * REACH), 0, 2 * Math.PI); g.stroke();
    g.font = "22px sans-serif"; g.fillStyle = colour("--play-line");
    const [x1, y1] = spot(1, 0, plane); g.fillText("1", x1 + 8, y1 + 26);
    blocks.forEach((b, i) => {
      for (const sign of b.im > 0 ? [1, -1] : [1]) {
        const [x, y] = spot(b.re, sign * b.im, plane);
        g.fillStyle = colour(Spectrum.modulus(b) > 1 + 1e-9 ? "--play-bad" : "--play-good");
        g.globalAlpha = sign > 0 ? 1 : 0.45;
        g.beginPath(); g.arc(x, y, 12, 0, 2 * Math.PI); g.fill();
        for (let ring = 1; ring < b.size; ring++) { g.strokeStyle = g.fillStyle; g.beginPath(); g.arc(x, y, 12 + 8 * ring, 0, 2 * Math.PI); g.stroke(); }
        if (i === chosen && sign > 0) { g.strokeStyle = colour("--play-line"); g.strokeRect(x - 26, y - 26, 52, 52); }
        g.globalAlpha = 1;
      }
    });
  }

  function drawOrbit(A, start, limit) {
    const g = space.getContext("2d"), w = space.width, path = Spectrum.orbit(A, start, STEPS, 1e6);
    const far = Math.min(30, Math.max(1.2, ...path.slice(0, 40).map((z) => Math.max(Math.abs(z[0]), Math.abs(z[1]))))) * 1.08;
    const put = (z) => [w / 2 + (z[0] / far) * (w / 2), w / 2 - (z[1] / far) * (w / 2)];
    g.clearRect(0, 0, w, w);
    g.strokeStyle = colour("--play-faint"); g.lineWidth = 2;
    g.beginPath(); g.moveTo(0, w / 2); g.lineTo(w, w / 2); g.moveTo(w / 2, 0); g.lineTo(w / 2, w); g.stroke();
    g.strokeStyle = colour("--play-good"); g.globalAlpha = 0.5;
    g.beginPath(); path.forEach((z, l) => (l ? g.lineTo(...put(z)) : g.moveTo(...put(z)))); g.stroke();
    path.forEach((z, l) => {
      g.globalAlpha = 0.25 + (0.75 * l) / path.length; g.fillStyle = colour("--play-good");
      g.beginPath(); g.arc(...put(z), l ? 6 : 10, 0, 2 * Math.PI); g.fill();
    });
    g.globalAlpha = 1;
    if (limit) {
      const [x, y] = put(Spectrum.apply(limit, start));
      g.strokeStyle = colour("--play-line"); g.lineWidth = 4;
      g.beginPath(); g.moveTo(x - 14, y - 14); g.lineTo(x + 14, y + 14); g.moveTo(x - 14, y + 14); g.lineTo(x + 14, y - 14); g.stroke();
    }
  }

  const shown = (M) => M.map((row) => row.map((x) => x.toFixed(2).replace("-0.00", "0.00").padStart(7)).join("")).join("\n");

  function show() {
    const found = Spectrum.caseOf(blocks), A = Spectrum.matrix(blocks), limit = Spectrum.limit(blocks);
    const start = new Array(Spectrum.dimension(blocks)).fill(0).map((_, i) => (i % 2 ? -0.6 : 1));
    drawPlane();
    drawOrbit(A, start, limit);
    word.textContent = `${WORDS[found][0]} (${found})`;
    why.textContent = WORDS[found][1];
    const b = blocks[chosen];
    joining.textContent = b.size > 1 ? "split the Jordan block" : "join into a Jordan block";
    const listed = blocks.map((x) => `${x.re.toFixed(3)}${x.im > 0 ? ` ± ${x.im.toFixed(3)} i` : ""}  |λ| = ${Spectrum.modulus(x).toFixed(3)}${x.size > 1 ? "  Jordan block of 2" : ""}`);
    numbers.textContent = `eigenvalues\n  ${listed.join("\n  ")}\n\nA =\n${shown(A)}\n\n` + (limit ? `lim A^l = U V =\n${shown(limit)}` : "lim A^l: there is none");
  }

  function near(event) {
    const box = plane.getBoundingClientRect(), reach = (2 * REACH) / box.width;
    const re = (event.clientX - box.left) * reach - REACH, im = REACH - (event.clientY - box.top) * reach;
    const far = blocks.map((b) => Math.min(Math.hypot(b.re - re, b.im - im), Math.hypot(b.re - re, b.im + im)));
    return { re, im, nearest: far.indexOf(Math.min(...far)), far: Math.min(...far) };
  }
  let held = false;
  plane.onpointerdown = (event) => { const n = near(event); if (n.far < 0.25) { chosen = n.nearest; held = true; plane.setPointerCapture(event.pointerId); } show(); };
  plane.onpointermove = (event) => { if (!held) return; const { re, im } = near(event); Object.assign(blocks[chosen], snapped(re, im)); show(); };
  plane.onpointerup = () => { held = false; };
  const join = () => { blocks[chosen].size = blocks[chosen].size > 1 ? 1 : 2; show(); };
  joining.onclick = join;
  plane.onkeydown = (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }, b = blocks[chosen];
    if (event.key in moves) {
      const [x, y] = moves[event.key], step = event.shiftKey ? 0.01 : 0.05;
      Object.assign(b, { re: b.re + step * x, im: Math.max(0, b.im + step * y) });
      if (Math.abs(Spectrum.modulus(b) - 1) < step / 2) Object.assign(b, snapped(b.re, b.im));
    } else if (event.key === "j" || event.key === "J") return join();
    else if (event.key === " ") chosen = (chosen + 1) % blocks.length;
    else return;
    event.preventDefault();
    show();
  };
  show();
  new MutationObserver(show).observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
})();
