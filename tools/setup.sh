#!/usr/bin/env bash
# Makes VENV with the package and everything its tests need: PyPI for Python packages, Debian for kcat.
set -euo pipefail
python=$1 venv=$2

"$python" - <<'PY' || { echo "Ottla needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
import sys
sys.exit(sys.version_info < (3, 11))
PY

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "setting up $venv (a few minutes the first time: Spark is large)"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -e .

command -v kcat >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends kcat) >/dev/null 2>&1 || true
fi
command -v kcat >/dev/null || echo "left out: kcat is not installed and may not be installed from here; its tests will be skipped (apt-get install kcat)"
