"""Draws docs/precision.svg from the curves that the test of precisions writes.

  MGFL_PRECISION_CURVES=curves.csv build/tests/test_optimizer -tc='200 steps*'
  python3 tests/docs/plot_precision.py curves.csv docs/precision.svg
"""
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 340, 48, 190, 14, 36
COLOURS = {"fp32": "#999999", "bf16 with": "#1f77b4", "bf16 alone": "#d62728"}


def colour_of(name):
    return next(colour for start, colour in COLOURS.items() if name.startswith(start))


def main():
    source, target = sys.argv[1:]
    with open(source) as file:
        head, *rows = [line.strip().split(";") for line in file]
    steps = [float(row[0]) for row in rows]
    curves = {name: [float(row[i]) for row in rows] for i, name in enumerate(head) if i > 0}
    high = max(max(curve) for curve in curves.values())

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps[-1]

    def y(loss):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * loss / high

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for loss in range(int(high) + 1):
        parts.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    for step in range(0, int(steps[-1]) + 1, 50):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{x(steps[-1] / 2):.1f}" y="{HEIGHT - 4}" text-anchor="middle">step</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 3}">loss of held-out sequences</text>')
    for name, curve in curves.items():
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in zip(steps, curve))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour_of(name)}" stroke-width="1.5"/>')
    for i, (start, text) in enumerate(
        (
            ("fp32", "fp32, three orders of the data"),
            ("bf16 with", "bf16, fp32 main weights"),
            ("bf16 alone", "bf16 alone"),
        )
    ):
        at = TOP + 20 + 20 * i
        parts.append(f'<path d="M{WIDTH - RIGHT + 8} {at}h16" stroke="{COLOURS[start]}" stroke-width="3"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 28}" y="{at + 4}">{text}</text>')
    with open(target, "w") as file:
        file.write("\n".join(parts) + "\n</svg>\n")


main()
