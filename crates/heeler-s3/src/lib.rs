//! Object stores with the API of S3: signed requests that put, get and look at one object.
//!
//! It knows no fleets, reads no clock and no environment, and decides nothing. Start at [`S3Client`].

mod s3_client;
mod s3_error;
mod signature;

pub use s3_client::{S3Client, S3Credentials, S3Place};
pub use s3_error::{S3Error, S3ErrorKind};
