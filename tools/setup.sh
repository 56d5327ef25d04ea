#!/usr/bin/env bash
# setup.sh PYTHON VENV broker|all: makes VENV with the package and what a broker needs, or also with everything that its
# tests and Spark need: PyPI for Python packages, Debian for programs.
set -euo pipefail
python=$1 venv=$2 what=$3

"$python" - <<'PY' || { echo "Ottla needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
import sys
sys.exit(sys.version_info < (3, 11))
PY

# Debian's packages for programs that tests run, where they are missing: quietly, since without them tests are
# skipped (in CI they fail).
install_debian() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@") >/dev/null 2>&1 || true
}

need() { # PROGRAM PACKAGE...
  local program=$1
  shift
  command -v "$program" >/dev/null || install_debian "$@"
  command -v "$program" >/dev/null ||
    echo "left out: $program is not installed and may not be installed from here; its tests will be skipped (apt-get install $*)"
}

# etcd, unpacked into VENV and not installed: its package would start a service. Needs no root where apt has its lists.
fetch_etcd() {
  local folder
  command -v etcd >/dev/null || [ -x "$venv/etcd/usr/bin/etcd" ] && return
  folder=$(mktemp -d)
  if command -v apt-get dpkg-deb >/dev/null; then
    [ "$(id -u)" != 0 ] || apt-get update -qq >/dev/null 2>&1 || true
    (cd "$folder" && apt-get download -qq etcd-server) >/dev/null 2>&1 || true
  fi
  if ! dpkg-deb -x "$folder"/etcd-server_*.deb "$folder/etcd" 2>/dev/null || ! mv "$folder/etcd" "$venv/etcd"; then
    echo "left out: etcd is not installed and cannot be fetched from here; its tests will be skipped (apt-get install etcd-server)"
  fi
  rm -rf "$folder"
}

case $what in
broker)
  lock=requirements-broker.lock
  echo "setting up $venv with what the broker needs (once)"
  ;;
all)
  lock=requirements.lock
  echo "setting up $venv with what Spark and all tests need (a few minutes the first time: Spark is large)"
  need cc gcc libc6-dev
  need kcat kcat
  need nft nftables
  need openssl openssl
  need strace strace
  ;;
esac
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
[ "$what" != all ] || fetch_etcd
exec "$python" tools/install_packages.py "$venv" "$lock"
