//! Makes Rust of what the gRPC example speaks; protox reads it, so that nobody needs `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/inventory.proto");
    let parsed = protox::compile(["proto/inventory.proto"], ["proto"])?;
    tonic_prost_build::compile_fds(parsed)?;
    Ok(())
}
