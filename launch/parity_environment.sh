#!/bin/sh
# Creates .venv-parity, the second environment: other libraries to be compared with, as they are
# published. They need PyTorch, which this project does not: they run there as a second process.
# Called by `make parity`. Needs Python 3.11 (PyTorch 2.13.0 for CPU has wheels for it everywhere).
set -eu
cd "$(dirname "$0")/.."
fail() { echo "make parity: $*" >&2; exit 1; }

packages='torch==2.13.0 numpy open_clip_torch==3.3.0'
bare='torchvision==0.28.0'  # without its dependencies: it would pull in another PyTorch
sentences='transformers==5.24.0 sentence-transformers==6.2.0'  # with theirs; PyTorch is there by then
files='pillow==12.3.0 sentencepiece==0.2.3 protobuf==7.36.2'  # Pillow 13 resizes tall pictures in another order
evaluators='clip_benchmark==1.6.2 pytrec_eval-terrier==0.5.11'  # what they need is there by then
stamp=.venv-parity/.complete
want=$(cksum <launch/parity_environment.sh)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi

candidates() {
    if [ -n "${PARITY_PYTHON:-}" ]; then echo "$PARITY_PYTHON"; return; fi
    command -v python3.11 2>/dev/null || true
    for root in "${PYENV_ROOT:-$HOME/.pyenv}" "$HOME/.local/share/uv/python"; do
        ls -d "$root"/versions/3.11.*/bin/python3 "$root"/cpython-3.11.*/bin/python3 2>/dev/null | sort -rV || true
    done
}
python=""
for candidate in $(candidates); do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "no usable Python 3.11 found; name one with PARITY_PYTHON=/path/to/python3.11 make parity."
free=$(df -Pk . | awk 'NR == 2 {print $4}')
[ "$free" -gt 4000000 ] || fail "the environment needs about 4 GB of disk; $(pwd) has $((free / 1024)) MB left."

echo "make parity: creating .venv-parity with $("$python" -V) ($python)"
rm -rf .venv-parity
"$python" -m venv .venv-parity || fail "$python could not create a virtual environment."
log=.venv-parity/install.log
pip="${PWD}/.venv-parity/bin/python -m pip install --quiet --disable-pip-version-check"
# open_clip's own requirements without torchvision, which would bring another PyTorch with it.
if ! { $pip ${packages%% open_clip*} huggingface-hub safetensors regex ftfy tqdm pyyaml $files &&
       $pip --no-deps "${packages##* }" timm "$bare" &&
       $pip $sentences &&
       $pip --no-deps $evaluators; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    fail "installing failed (network, disk?). The whole log: $log. Run 'make parity' again to retry."
fi
.venv-parity/bin/python experiments/benchmarks/peer_open_clip.py --check || fail "open_clip does not run there."
.venv-parity/bin/python -W ignore experiments/benchmarks/peer_sentence.py --help >/dev/null ||
    fail "sentence-transformers does not run there."
.venv-parity/bin/python -W ignore experiments/benchmarks/peer_evaluation.py --check ||
    fail "the libraries of evaluations do not run there."
echo "$want" >"$stamp"
