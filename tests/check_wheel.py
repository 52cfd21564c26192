"""Build the wheel, install it apart from the source tree, and import it from there."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PROBE = """
import pathlib, sys
import torchcram
home = pathlib.Path(torchcram.__file__).resolve()
assert home.is_relative_to(pathlib.Path(sys.argv[1]).resolve()), f"imported {home}, not the wheel"
assert (home.parent / "py.typed").is_file(), "py.typed is not in the wheel"
for name in ("page.css", "page.js", "paper.css", "paper.js", "explorer.js"):
    assert (home.parent / "report" / name).is_file(), f"{name} is not in the wheel"
import torch
model = torchcram.Cram(torchcram.CramConfig.preset("tiny", inputs="tokens", vocabulary=8, outputs="tokens"))
assert model(torch.zeros(1, 3, dtype=torch.int64)).logits.shape == (1, 3, 8)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT)], check=True)
        (wheel,) = Path(folder).glob("torchcram-*.whl")
        target = Path(folder) / "installed"
        subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
        environment = {"PYTHONPATH": str(target), "PATH": ""}
        subprocess.run([sys.executable, "-c", PROBE, str(target)], check=True, cwd=folder, env=environment)
    sys.stdout.write(f"{wheel.name} installs and imports\n")


if __name__ == "__main__":
    main()
