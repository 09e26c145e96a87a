#!/bin/sh
# Gives the broker a certificate that certbot has renewed; docs/how-to/lets-encrypt.md. certbot says where it is.
# One file with certificate, chain and key takes the place of the old one at once: the pair always fits.
set -eu
target=${TARGET:-/etc/tidemq/server.pem}
owner=${OWNER:-tidemq:tidemq}

umask 077
new=$(mktemp "$target.XXXXXX")
trap 'rm -f "$new"' EXIT
cat "$RENEWED_LINEAGE/fullchain.pem" "$RENEWED_LINEAGE/privkey.pem" > "$new"
openssl x509 -in "$new" -noout -checkend 86400 # what has ended, or is no certificate, stays out
chown "$owner" "$new"
mv "$new" "$target"
