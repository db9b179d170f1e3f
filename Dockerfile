# A small CPU image: docker build -t discorl . && docker run --rm -v "$PWD/runs:/work/runs" discorl train catch
FROM python:3.11-slim AS build

COPY pyproject.toml README.md LICENSE NOTICE constraints.txt /src/
COPY discorl /src/discorl
# torch comes first and alone, in its build for CPUs, so that nothing with CUDA is pulled in.
RUN python -m venv /opt/discorl \
    && /opt/discorl/bin/pip install --no-cache-dir -c /src/constraints.txt \
        --index-url https://download.pytorch.org/whl/cpu torch \
    && /opt/discorl/bin/pip install --no-cache-dir -c /src/constraints.txt '/src[hub,onnx]'

FROM python:3.11-slim
# The compiler is for the kernels, which make training faster; without it everything works.
RUN apt-get update \
    && apt-get install --no-install-recommends --yes g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 discorl \
    && install --directory --owner discorl /work
COPY --from=build /opt/discorl /opt/discorl
ENV PATH=/opt/discorl/bin:$PATH
USER discorl
WORKDIR /work
ENTRYPOINT ["discorl"]
CMD ["--help"]
