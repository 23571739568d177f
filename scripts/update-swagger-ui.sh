#!/bin/sh
# Puts a version of Swagger UI into crates/http/assets/swagger-ui, from the npm registry.
# Usage: scripts/update-swagger-ui.sh 5.32.6
# Then run `cargo test -p callboard-http docs`, and open /docs in a browser.
set -eu

version=${1:?the version of swagger-ui-dist}
assets=$(cd "$(dirname "$0")/../crates/http/assets/swagger-ui" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$work"
npm pack --silent "swagger-ui-dist@$version" > /dev/null
tar xzf "swagger-ui-dist-$version.tgz"
cd package
for file in swagger-ui.css swagger-ui-bundle.js swagger-ui-standalone-preset.js; do
  # Without name and time: the same version gives the same bytes.
  gzip -9 --no-name --stdout "$file" > "$assets/$file.gz"
done
cp index.html index.css favicon-16x16.png favicon-32x32.png LICENSE NOTICE "$assets"
cp swagger-ui-bundle.js.LICENSE.txt swagger-ui-standalone-preset.js.LICENSE.txt "$assets"
echo "$version" > "$assets/VERSION"
