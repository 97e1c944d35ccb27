/* The arithmetic of the page to play with; no drawing here. tests/docs/test_play.py compares it with koopsim.spectral.analyze.

   A linear map A is given by its eigenvalues: blocks {re, im, size}. im > 0 stands for the pair re +- i im; size 2 is a
   Jordan block. A = Q J Q^T with Q orthogonal, so that J's structure is A's and nothing of it can be read off A. */
"use strict";

const Spectrum = (() => {
  const ON_CIRCLE = 1e-9;

  const zeros = (n, m = n) => Array.from({ length: n }, () => new Array(m).fill(0));
  const width = (block) => block.size * (block.im > 0 ? 2 : 1);
  const dimension = (blocks) => blocks.reduce((n, block) => n + width(block), 0);

  function multiply(a, b) {
    return a.map((row) => b[0].map((_, j) => row.reduce((s, x, k) => s + x * b[k][j], 0)));
  }
  const apply = (a, z) => a.map((row) => row.reduce((s, x, k) => s + x * z[k], 0));

  /* Householder's reflection of a fixed vector: orthogonal, symmetric, no zero in it. */
  function mixing(n) {
    const v = Array.from({ length: n }, (_, i) => 1 + i / n);
    const norm = v.reduce((s, x) => s + x * x, 0);
    return v.map((x, i) => v.map((y, j) => (i === j ? 1 : 0) - (2 * x * y) / norm));
  }

  /* The real Jordan form: [re], [re -im; im re], with ones (or 2 x 2 identities) above the diagonal of a larger block. */
  function jordan(blocks) {
    const J = zeros(dimension(blocks));
    let at = 0;
    for (const { re, im, size } of blocks) {
      const step = im > 0 ? 2 : 1;
      for (let k = 0; k < size; k++, at += step) {
        J[at][at] = re;
        if (step === 2) {
          J[at + 1][at + 1] = re;
          J[at][at + 1] = -im;
          J[at + 1][at] = im;
        }
        if (k + 1 < size) for (let d = 0; d < step; d++) J[at + d][at + step + d] = 1;
      }
    }
    return J;
  }

  function mixed(inner) {
    const Q = mixing(inner.length);
    return multiply(multiply(Q, inner), Q);
  }
  const matrix = (blocks) => mixed(jordan(blocks));

  const modulus = ({ re, im }) => Math.hypot(re, im);
  const onCircle = (block) => Math.abs(modulus(block) - 1) < ON_CIRCLE;
  const isOne = ({ re, im }) => Math.abs(re - 1) < ON_CIRCLE && im < ON_CIRCLE;

  /* The four cases of the paper's section 3.2. */
  function caseOf(blocks) {
    if (blocks.some((b) => modulus(b) > 1 + ON_CIRCLE || (onCircle(b) && b.size > 1))) return "divergent";
    if (blocks.some((b) => onCircle(b) && !isOne(b))) return "invariant-set";
    return blocks.some(isOne) ? "fixed-point" : "origin";
  }

  /* lim A^l = U V: the projector onto the eigenvectors of 1, zero where there is none; null where there is no limit. */
  function limit(blocks) {
    const found = caseOf(blocks);
    if (found !== "fixed-point" && found !== "origin") return null;
    const P = zeros(dimension(blocks));
    let at = 0;
    for (const block of blocks) {
      if (isOne(block)) P[at][at] = 1;
      at += width(block);
    }
    return mixed(P);
  }

  /* z, A z, A^2 z, ...; it ends where numbers no longer can be drawn. */
  function orbit(A, z, steps, largest = Infinity) {
    const found = [z];
    for (let l = 0; l < steps; l++) {
      const next = apply(A, found[found.length - 1]);
      if (next.some((x) => !(Math.abs(x) <= largest))) break;
      found.push(next);
    }
    return found;
  }

  return { matrix, caseOf, limit, orbit, apply, dimension, mixing, modulus };
})();

if (typeof module !== "undefined") module.exports = Spectrum;
