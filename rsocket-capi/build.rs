//! How librsocket.so is linked: with a name of its own, for programs that are linked with it; and never to be
//! unloaded, since the steps around `fork` point into it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librsocket.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
