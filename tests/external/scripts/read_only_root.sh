#!/bin/sh
# Runs a program in an image as a container does: its own root, which nobody can write to, and another user.
#
#   unshare --mount sh read_only_root.sh ROOT APP USER PROGRAM ARG...
set -eu
root=$1 app=$2 user=$3
shift 3
mount --bind "$root" "$root"
mkdir -p "$root/proc" "$root/dev"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$app" "$root/app"
mount -o remount,ro,bind "$root/app"
mount -o remount,ro,bind "$root"
if touch "$root/written" 2>/dev/null; then
  echo 'the root can be written to' >&2
  exit 1
fi
exec chroot --userspec="$user:$user" "$root" "$@"
