# The pipeline's image (not the sandbox's: that is sandbox/image/Dockerfile).
# docker build -t rstar2 . && docker run --init --shm-size 8g -v rstar2-runs:/app/runs rstar2 run --profile demo
FROM python:3.11-slim

RUN apt-get update && apt-get install -y --no-install-recommends g++ make git && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY requirements/cpu.txt pyproject.toml Makefile LICENSE README.md ./
COPY flows flows
COPY tasks tasks
COPY rl rl
COPY sandbox sandbox
RUN make setup PYTHON=python3
COPY pipeline.yaml prefect.toml ./

ENV PATH=/app/.venv/bin:$PATH OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
STOPSIGNAL SIGTERM
ENTRYPOINT ["rstar2"]
CMD ["run", "--profile", "demo"]
