#!/bin/sh
# Installs Debian packages that some tests want, as root; elsewhere says what will be skipped. Starts no service, and
# leaves no database cluster behind: the tests make their own, in private directories.
policy=/usr/sbin/policy-rc.d
clusters=/etc/postgresql-common/createcluster.d/todoku-tests.conf

# Whether the program that is wanted of a package is here, wherever it is from.
present() {
  case "$1" in
    default-jre-headless) command -v java >/dev/null 2>&1 ;;
    maven) command -v mvn >/dev/null 2>&1 ;;
    nodejs) command -v node >/dev/null 2>&1 ;;
    prometheus) command -v promtool >/dev/null 2>&1 ;;
    postgresql) ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] ;;
  esac
}

install() {
  made=
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=yes
  fi
  mkdir -p "${clusters%/*}" && echo 'create_main_cluster = false' >"$clusters"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1"; } >/dev/null 2>&1
  done=$?
  rm -f "$clusters"
  if [ -n "$made" ]; then rm -f "$policy"; fi
  return $done
}

for package in "$@"; do
  if present "$package"; then
    echo "$package: present"
  elif [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "$package: missing; the tests that need it will be skipped (Debian, Ubuntu: apt-get install $package)"
  elif install "$package" && present "$package"; then
    echo "$package: installed"
  else
    echo "$package: could not be installed; the tests that need it will be skipped"
  fi
done
