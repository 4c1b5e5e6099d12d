//! Makes Rust of what the gRPC example speaks; protox reads it, so that nobody needs `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=tonic_inventory/inventory.proto");
    let parsed = protox::compile(["tonic_inventory/inventory.proto"], ["tonic_inventory"])?;
    tonic_prost_build::compile_fds(parsed)?;
    Ok(())
}
