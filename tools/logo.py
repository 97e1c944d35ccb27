"""Draws the logo, docs/assets/logo.svg: the unit circle, an orbit that spirals in, and where it settles.

    z_{l+1} = lambda z_l,   lambda = 0.86 exp(0.62 i)
"""

import cmath
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "logo.svg"
LAMBDA = 0.86 * cmath.exp(0.62j)
SIZE, RADIUS, STEPS = 64, 27, 17


def svg() -> str:
    orbit = [cmath.exp(0.9j) * LAMBDA**step for step in range(STEPS)]
    places = [(SIZE / 2 + RADIUS * z.real, SIZE / 2 - RADIUS * z.imag) for z in orbit]
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{3.1 - 0.11 * i:.2f}"/>' for i, (x, y) in enumerate(places))
    middle = f'cx="{SIZE / 2}" cy="{SIZE / 2}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" role="img" aria-label="koopsim">'
        f'<rect width="{SIZE}" height="{SIZE}" rx="13" fill="#1d3557"/>'
        f'<circle {middle} r="{RADIUS}" fill="none" stroke="#a8c5e2" stroke-width="2"/>'
        f'<polyline points="{path}" fill="none" stroke="#ffb35c" stroke-width="1.6" opacity=".8"/>'
        f'<g fill="#ffb35c">{dots}</g><circle {middle} r="3.4" fill="#fff"/></svg>\n'
    )


if __name__ == "__main__":
    FILE.write_text(svg())
