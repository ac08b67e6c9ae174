#!/bin/sh
# Creates .venv with everything that development needs, from constraints.txt. Called by `make env`;
# `environment.sh plan` (for the tests and `make env-plan`) adds the compilers of TPUs and GPUs, 1.3 GB.
# The newest Python that really runs is taken: version managers leave shims on PATH that fail until
# a version is chosen, so each candidate is asked to run before it is believed.
set -eu
cd "$(dirname "$0")/.."
fail() { echo "make env: $*" >&2; exit 1; }

stamp=.venv/.complete
want=$(cat pyproject.toml constraints.txt launch/environment.sh | cksum)
complete() { [ -f "$1" ] && [ "$(cat "$1")" = "$want" ]; }
log=.venv/install.log
install() {  # extras, stamp
    if ! .venv/bin/uv pip install --quiet --compile-bytecode --python .venv/bin/python --constraint constraints.txt --editable ".[$1]" >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        fail "installing the dependencies failed (network, disk?). The whole log: $log. Run 'make env' again to retry."
    fi
    echo "$want" >"$2"
}
add_compilers() {
    if [ "${1:-}" = plan ] && ! complete "$stamp-plan"; then
        echo "make env: adding the compilers of TPUs and GPUs"
        install dev,plan "$stamp-plan"
    fi
}
if complete "$stamp" && .venv/bin/python -c '' 2>/dev/null; then add_compilers "$@"; exit 0; fi

candidates() {
    if [ -n "${PYTHON:-}" ]; then echo "$PYTHON"; return; fi
    for minor in 13 12 11; do
        command -v "python3.$minor" 2>/dev/null || true
        for root in "${PYENV_ROOT:-$HOME/.pyenv}" "$HOME/.local/share/uv/python"; do
            ls -d "$root"/versions/3.$minor.*/bin/python3 "$root"/cpython-3.$minor.*/bin/python3 2>/dev/null | sort -rV || true
        done
    done
    command -v python3 2>/dev/null || true
}
python=""
for candidate in $(candidates); do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "no usable Python found. Version 3.11, 3.12 or 3.13 with the venv module is needed; name one with PYTHON=/path/to/python3 make env."
[ -w . ] || fail "cannot write to $(pwd), where .venv has to be created."
free=$(df -Pk . | awk 'NR == 2 {print $4}')
[ "$free" -gt 4000000 ] || fail "the environment needs about 4 GB of disk; $(pwd) has $((free / 1024)) MB left."

echo "make env: creating .venv with $("$python" -V) ($python)"
rm -rf .venv
"$python" -m venv .venv || fail "$python could not create a virtual environment."
.venv/bin/python -m pip install --quiet --disable-pip-version-check uv >"$log" 2>&1 ||
    fail "pip could not install uv (network, disk?). The whole log: $log."
install dev "$stamp"
add_compilers "$@"
