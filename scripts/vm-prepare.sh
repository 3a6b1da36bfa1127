# shellcheck shell=bash
# What scripts/vm needs once: a kernel, its modules, soft-iWARP, and a first file system for the guest.
#
# Sourced by scripts/vm after lib.sh. `vm_prepare` leaves in the directory $VM_KERNEL:
#   vmlinuz              Debian's stock kernel (the `-cloud-` flavours lack rdma_rxe)
#   initramfs            busybox, the modules that every guest loads, and scripts/vm-initramfs as /init
#   lib/modules/VERSION  all modules of that kernel, and siw, for `modprobe` in the guest
# Nothing of it is installed on the host: packages are downloaded and unpacked. A directory is
# complete or absent, so an interrupted preparation is simply done again. Its name has a digest of the
# recipe, this file and vm-initramfs: work trees with different recipes do not disturb each other.

VM_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/rsocket-vm
VM_KERNEL=$VM_CACHE/kernel-$(cat "$ROOT/scripts/vm-prepare.sh" "$ROOT/scripts/vm-initramfs" | sha256sum | cut -c1-16)

# What the guest loads first: its root and the virtual network, then both devices.
VM_MODULES=(9pnet_virtio 9p overlay virtio_net veth virtio-rng crc32c_generic libcrc32c rdma_rxe rdma_ucm siw)

vm_prepare() {
  [ "$(uname -m)" = x86_64 ] || die "the virtual machine is for x86_64 only"
  need qemu-system-x86_64=qemu-system-x86 kmod rdma=iproute2 flock=util-linux \
    rstream=rdmacm-utils ibv_devinfo=ibverbs-utils busybox=busybox-static
  # The providers are what makes ibverbs know rxe and siw; they are libraries, not programs.
  compgen -G '/etc/libibverbs.d/rxe.driver' >/dev/null || apt_install ibverbs-providers
  mkdir -p "$VM_CACHE" || die "no cache directory"
  (
    # Two callers at once: the second waits, then finds the work done.
    flock 9
    # This subshell has temporary directories of its own to remove, not its parent's.
    RS_TMP=() RS_PIDS=()
    trap cleanup EXIT
    [ -d "$VM_KERNEL" ] || vm_prepare_kernel
  ) 9>"$VM_CACHE/lock" || exit 1
  # What no work tree has used for a month goes.
  touch "$VM_KERNEL"
  find "$VM_CACHE" -mindepth 1 -maxdepth 1 -type d -mtime +30 -exec rm -rf {} +
}

vm_prepare_kernel() {
  local work image version debian new=$VM_KERNEL.new
  say "preparing the virtual machine's kernel (once, a minute or two)"
  need make gcc-12 xz=xz-utils
  tmpdir work
  image=$(vm_kernel_package)
  [ -n "$image" ] || { apt_update; image=$(vm_kernel_package); }
  [ -n "$image" ] || die "no package linux-image-6.12-amd64: add bookworm-security or bookworm-backports to apt's sources"
  version=${image#linux-image-}
  debian=$(apt-cache show --no-all-versions "$image" | sed -n 's/^Version: //p' | head -1)
  rm -rf "$new" && mkdir -p "$new" || die "cannot write to the cache"

  vm_fetch "$work" "$image" "linux-headers-$version" "linux-headers-${version%-amd64}-common" \
    "linux-kbuild-${version%-amd64}" "linux-source-6.12=$debian"
  dpkg -x "$work/$image"_*.deb "$work/image" || die "cannot unpack $image"
  mv "$work/image/boot/vmlinuz-$version" "$new/vmlinuz"
  # On some releases the package's modules are below /usr.
  mkdir -p "$new/lib/modules"
  mv "$work"/image/{,usr/}lib/modules/"$version" "$new/lib/modules/" 2>/dev/null
  [ -d "$new/lib/modules/$version/kernel" ] || die "no modules in $image"

  vm_build_siw "$work" "$version" "$new/lib/modules/$version"
  depmod -b "$new" "$version" || die "depmod failed"
  vm_initramfs "$work" "$version" "$new"
  mv "$new" "$VM_KERNEL" || die "cannot write to the cache"
}

# The name of the real package behind the one that follows the 6.12 series.
vm_kernel_package() {
  apt-cache depends linux-image-6.12-amd64 2>/dev/null |
    sed -n 's/^ *Depends: \(linux-image-6\.12.*-amd64\)$/\1/p' | head -1
}

# vm_fetch DIR PACKAGE[=VERSION]...
vm_fetch() {
  local dir=$1
  shift
  (cd "$dir" && apt-get download -q "$@" >log 2>&1 </dev/null) && return
  apt_update
  (cd "$dir" && apt-get download -q "$@" >log 2>&1 </dev/null) && return
  tail -5 "$dir/log" >&2
  die "could not download: $*"
}

# Debian's configuration leaves soft-iWARP out; its source package has it.
vm_build_siw() {
  local work=$1 version=$2 into=$3 p headers
  for p in "$work"/linux-headers-*.deb "$work"/linux-kbuild-*.deb; do
    # Without vmlinux the build skips type information, which would need one more package.
    dpkg-deb --fsys-tarfile "$p" | tar -x -C "$work" --exclude='*/vmlinux' || die "cannot unpack $p"
  done
  dpkg-deb --fsys-tarfile "$work"/linux-source-6.12_*.deb |
    tar -x --to-stdout ./usr/src/linux-source-6.12.tar.xz |
    tar -xJ -C "$work" --strip-components=4 linux-source-6.12/drivers/infiniband/sw/siw
  [ -f "$work/siw/Makefile" ] || die "no siw in linux-source-6.12"
  headers=$work/usr/src/linux-headers-$version
  # The package's makefile expects to be installed.
  sed -i "s#/usr/src/#$work/usr/src/#" "$headers/Makefile"
  make -s -C "$headers" M="$work/siw" CONFIG_RDMA_SIW=m modules >"$work/siw.log" 2>&1 ||
    { tail -20 "$work/siw.log" >&2; die "siw does not build"; }
  strip -g "$work/siw/siw.ko"
  mkdir -p "$into/extra" && cp "$work/siw/siw.ko" "$into/extra/"
}

# The guest's first file system: it only loads modules and mounts the host's root.
vm_initramfs() {
  local work=$1 version=$2 new=$3 tree=$1/initramfs n=100 file
  mkdir -p "$tree"/{bin,proc,dev,host,rw,new,modules}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  cp "$ROOT/scripts/vm-initramfs" "$tree/init" && chmod 755 "$tree/init"
  while read -r file; do
    # Numbered in the order of loading; unpacked here, since the guest is slow.
    n=$((n + 1))
    case $file in
      *.xz) xz -dc "$file" >"$tree/modules/$n-$(basename "$file" .xz)" ;;
      *) cp "$file" "$tree/modules/$n-$(basename "$file")" ;;
    esac || die "cannot copy $file"
  done < <(vm_module_files "$version" "$new" "${VM_MODULES[@]}")
  [ $n -gt 110 ] || die "the kernel's modules were not found"
  (cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null) >"$new/initramfs" || die "no initramfs"
}

# vm_module_files VERSION DIR MODULE... : their files and those that they need, each once, in loading order.
vm_module_files() {
  local version=$1 dir=$2 m
  shift 2
  for m in "$@"; do
    modprobe -d "$dir" -S "$version" --show-depends "$m" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
  done | awk '!seen[$0]++'
}
