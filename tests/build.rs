//! Makes Rust of what the gRPC tests speak; protox reads it, so that nobody needs `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=grpc/calls.proto");
    let parsed = protox::compile(["grpc/calls.proto"], ["grpc"])?;
    tonic_prost_build::compile_fds(parsed)?;
    Ok(())
}
