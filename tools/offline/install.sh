#!/bin/sh
# Install what `make offline` packed into a virtual environment, without a network:
#
#   sh install.sh [FOLDER]     (default: .venv, where the Makefile of a checkout looks)
#
# PYTHON=python3.12   the Python of the environment
# SYSTEM=1            also see that Python's own packages, if some were left out by --have
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-.venv}
python=${PYTHON:-python3}
if [ -f "$here/wheels.tar.xz" ] && [ ! -d "$here/wheels" ]; then
  "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
    "$here/wheels.tar.xz" "$here"
fi
"$python" -m venv --without-pip ${SYSTEM:+--system-site-packages} "$venv"
for pip in "$here"/wheels/pip-*.whl; do :; done
"$venv/bin/python" "$pip/pip" --disable-pip-version-check --quiet \
  install --no-index --no-deps "$here"/wheels/*.whl
# Nothing of a set-up is left to do: `make gpu`, `make test` and `make demo` find these files.
echo offline > "$venv/.tvm"
for stamp in venv deps tvm native packages gpu; do touch "$venv/.stamp-$stamp"; done
"$venv/bin/heteroplace" --version
