# One image for every process; the command says which: serve, gateway, signals, learn, ship, agent,
# console. With EXTRA=vllm it holds the vLLM engine too, and is only needed where that serves.
FROM python:3.12.11-slim-bookworm

# More arguments for pip, for example the index of PyTorch's CPU wheels: see the Makefile.
ARG PIP_EXTRA=""
ARG EXTRA=""

# vLLM compiles kernels as it starts.
RUN if [ "$EXTRA" = vllm ]; then \
      apt-get update && apt-get install -y --no-install-recommends build-essential \
      && rm -rf /var/lib/apt/lists/*; \
    fi

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tendril tendril
COPY kernels kernels
COPY serving serving
COPY signals signals
COPY learner learner
COPY offline_rl offline_rl
COPY shipper shipper
COPY dashboards dashboards
RUN pip install --no-cache-dir -c constraints.txt ${PIP_EXTRA} ".[kafka${EXTRA:+,$EXTRA}]"

# A named volume takes over the owner of the folder it covers, so the workspace is made here.
RUN useradd --uid 10001 --no-create-home tendril \
    && install --directory --owner=tendril --mode=0750 /var/lib/tendril
USER tendril
# Engines keep what they compile below HOME.
ENV TENDRIL_WORKSPACE=/var/lib/tendril HOME=/var/lib/tendril/home
ENTRYPOINT ["tendril"]
