#!/bin/bash
# deb.sh BUILD: packs what `make install` installs into one Debian package.
set -eu
cd "$(dirname "$0")/.."
build=$1
version=$("$build/bin/tenon" version --json | sed 's/.*"version": "\([^"]*\)".*/\1/')
architecture=$(dpkg --print-architecture)
root=$build/deb
rm -rf "$root"
cmake --install "$build" --prefix "$root/usr" > /dev/null
strip --strip-unneeded "$root"/usr/bin/tenon "$root"/usr/lib/*.so.*.*.*
gzip -9n "$root/usr/share/man/man1/tenon.1"
mkdir -p "$root/usr/lib/python3/dist-packages" && ln -s ../../../share/tenon/python/tenon "$root/usr/lib/python3/dist-packages/tenon"
install -Dm644 LICENSE "$root/usr/share/doc/tenon/copyright"
install -Dm644 docs/tenon.service "$root/usr/share/doc/tenon/examples/tenon.service"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions" # where Debian's zsh looks

# The packages that own the libraries it is linked with; dpkg knows some of them by their path before the merge of
# /lib into /usr/lib.
depends=$(ldd "$root"/usr/bin/tenon "$root"/usr/lib/*.so | awk '$2 == "=>" && $3 ~ /^\// && $3 !~ /libtenon/ { print $3 }' | sort -u |
    while read -r file; do
        { dpkg -S "$file" || dpkg -S "/usr$file" || dpkg -S "${file#/usr}"; } 2> /dev/null | cut -d: -f1 | head -n 1
    done | sort -u | while read -r package; do
        echo "$package (>= $(dpkg-query -W -f '${Version}' "$package" | sed 's/-[^-]*$//'))"
    done | paste -sd, | sed 's/,/, /g')
mkdir -p "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<END
Package: tenon
Version: $version
Architecture: $architecture
Maintainer: The Tenon authors <tenon@localhost>
Section: science
Priority: optional
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: $depends
Description: tensor runtime and language model engine
 Plans every byte before anything runs, then runs graphs of tensors and GGUF
 language models on the CPU and on GPUs. The program, libraries and headers.
END
printf '#!/bin/sh\nset -e\nldconfig\n' | tee "$root/DEBIAN/postinst" > "$root/DEBIAN/postrm"
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"
package=$build/tenon_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package"
