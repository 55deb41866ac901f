//! Compiles the memory functions for targets with musl.

#![expect(clippy::disallowed_methods, reason = "Cargo tells the target by the environment")]

fn main() {
    println!("cargo::rerun-if-changed=src/memory.c");
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("musl") {
        return;
    }
    cc::Build::new()
        .file("src/memory.c")
        .opt_level(2)
        // The compiler must not replace a loop in `memcpy` by a call of `memcpy`.
        .flag("-fno-builtin")
        .flag("-fno-tree-loop-distribute-patterns")
        // All functions are linked, so that none of musl's own is used beside them.
        .link_lib_modifier("+whole-archive")
        .compile("heeler_memory");
}
