#!/bin/sh
# Starts JupyterLab with a token out of the environment: whoever has it runs code in this container, so there is no
# default one, and none in the image.
set -eu

token="${JUPYTER_TOKEN:-}"
if [ "${#token}" -lt 16 ]; then
    echo "start-jupyter: set JUPYTER_TOKEN to a secret of 16 characters or more, as in" >&2
    echo "  docker run --env JUPYTER_TOKEN=\"\$(openssl rand -hex 24)\" ..." >&2
    exit 2
fi
# Jupyter reads JUPYTER_TOKEN by itself; as an argument it would be in the list of processes.
exec jupyter lab --ip=0.0.0.0 --port=8888 --no-browser --ServerApp.root_dir=/training
