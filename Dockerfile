# The broker as an image; docs/install.md says how it is run. Only what git knows is sent to the builder:
#   git archive HEAD | docker build --tag tidemq -

FROM debian:12.11-slim AS build
# without versions: Debian's own updates within the release
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir cyclonedx-bom==7.5.0 \
    && /build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source
ARG EXTRAS=streams,auth
RUN python3 -m venv --without-pip /opt/tidemq \
    && /build/bin/pip --python /opt/tidemq/bin/python install --no-cache-dir \
        "$(echo /wheels/tidemq-*.whl)[$EXTRAS]" \
    && mkdir /opt/tidemq/share \
    && /build/bin/cyclonedx-py environment --pyproject /source/pyproject.toml --output-reproducible \
        --output-file /opt/tidemq/share/tidemq.cdx.json /opt/tidemq/bin/python

FROM debian:12.11-slim
LABEL org.opencontainers.image.title="TideMQ" \
    org.opencontainers.image.description="An MQTT 3.1, 3.1.1 and 5.0 broker" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.base.name="debian:12.11-slim"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 tidemq \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent tidemq \
    && install --directory --owner=tidemq --group=tidemq --mode=0700 /var/lib/tidemq \
    && install --directory --owner=tidemq --group=tidemq --mode=0750 /run/tidemq
COPY --from=build /opt/tidemq /opt/tidemq
# the admin listener stays on the container's loopback address: health checks ask it
ENV PATH=/opt/tidemq/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TIDEMQ_DATA=/var/lib/tidemq \
    TIDEMQ_ADMIN_PORT=18083
VOLUME /var/lib/tidemq
EXPOSE 1883
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["tidemq", "admin", "health"]
ENTRYPOINT ["tidemq"]
CMD ["serve"]
