#!/bin/bash
# scripts/setup.sh asks for exactly the libraries that cmake/dependencies.cmake requires, and is quiet when all is there.
set -eu
cd "$(dirname "$0")/../.."
wanted=$(sed -n 's/^ *tenon_[a-z]*([A-Z0-9_]* \([^ ]*\) \([^ )]*\))/\1 \2/p' cmake/dependencies.cmake | sort -u)
asked=$(sed -n 's/^ *need_library \([^ ]*\) \([^ ]*\)$/\1 \2/p' scripts/setup.sh | sort -u)
if [ -z "$wanted" ] || [ "$wanted" != "$asked" ]; then
    printf 'cmake/dependencies.cmake wants:\n%s\nscripts/setup.sh asks for:\n%s\n' "$wanted" "$asked"
    exit 1
fi
[ -z "$(sh scripts/setup.sh build 2>&1)" ]

# Where nothing is installed and nobody may install, it prints the one command and fails.
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
for program in id sh; do ln -s "$(command -v $program)" "$empty/$program"; done
printf '#!/bin/sh\necho 1000\n' > "$empty/fake-id" && chmod +x "$empty/fake-id" && ln -sf fake-id "$empty/id"
printf '#!/bin/sh\nexit 1\n' > "$empty/apt-get" && chmod +x "$empty/apt-get"
if PATH=$empty sh scripts/setup.sh build > "$empty/out" 2>&1; then
    echo "setup.sh did not miss anything in an empty PATH"
    exit 1
fi
grep -q 'sudo apt-get update && sudo apt-get install -y .* gcc .*cmake .*libcmocka-dev' "$empty/out"
