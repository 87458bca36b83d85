#!/bin/sh
# Installs Debian packages that some tests want, as root; elsewhere says what will be skipped. Starts no service.
policy=/usr/sbin/policy-rc.d
for package in "$@"; do
  if command -v "$package" >/dev/null 2>&1 || [ -x "/usr/sbin/$package" ]; then
    echo "$package: present"
  elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    made=
    if [ ! -e "$policy" ]; then
      printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=yes
    fi
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"; } >/dev/null 2>&1 \
      && echo "$package: installed" || echo "$package: could not be installed; the tests that need it will be skipped"
    if [ -n "$made" ]; then rm -f "$policy"; fi
  else
    echo "$package: missing; the tests that need it will be skipped (Debian, Ubuntu: apt-get install $package)"
  fi
done
