# koopsim in a container, from a registry's base image.
#
#   docker build -t koopsim .                                        CPU; for a GPU, give a base with CUDA and PyTorch:
#   docker build -t koopsim --build-arg BASE=pytorch/pytorch:2.11.0-cuda12.8-cudnn9-runtime .
#   docker run --rm -v "$PWD:/work" koopsim train digits/sim-single --scale smoke --out runs/first
#   docker run --rm --gpus all -v "$PWD:/work" koopsim bench --quick
ARG BASE=python:3.12-slim

FROM python:3.12-slim AS build
ARG COMMIT
ENV KOOPSIM_COMMIT=${COMMIT}
RUN pip install --no-cache-dir build
COPY . /src
RUN if [ -z "$KOOPSIM_COMMIT" ]; then unset KOOPSIM_COMMIT; fi; python -m build --wheel --outdir /dist /src

FROM ${BASE}
# On a plain Python image the CPU build of PyTorch is enough; an image that brings PyTorch keeps its own.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -c "import torch" 2>/dev/null || pip install --no-cache-dir torch --index-url "$TORCH_INDEX"
COPY --from=build /dist /dist
RUN pip install --no-cache-dir /dist/*.whl && rm -r /dist && useradd --create-home koopsim && mkdir /work && chown koopsim /work
USER koopsim
WORKDIR /work
VOLUME /work
ENTRYPOINT ["koopsim"]
CMD ["--help"]
