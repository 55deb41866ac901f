//! Signatures of requests: version 4 of AWS, with HMAC-SHA256. Start at [`SignedCall::authorize`].

use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

/// A request to be signed.
pub(crate) struct SignedCall<'a> {
    pub(crate) method: &'a str,
    /// Path, encoded as it is sent.
    pub(crate) path: &'a str,
    /// Headers in lower case, ordered by name. They must contain `host` and `x-amz-content-sha256`.
    pub(crate) headers: &'a [(&'a str, &'a str)],
    /// SHA-256 of the body, in hexadecimal.
    pub(crate) body_sha256: &'a str,
    pub(crate) region: &'a str,
    pub(crate) at: Timestamp,
}

impl SignedCall<'_> {
    /// Returns the header `authorization`.
    pub(crate) fn authorize(&self, access_key: &str, secret_key: &str) -> String {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let headers: String =
            self.headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
        let canonical =
            format!("{}\n{}\n\n{headers}\n{names}\n{}", self.method, self.path, self.body_sha256);
        let (day, region) = (self.at.strftime("%Y%m%d").to_string(), self.region);
        let scope = format!("{day}/{region}/s3/aws4_request");
        let text = format!(
            "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
            amz_date(self.at),
            hex(&Sha256::digest(canonical.as_bytes()))
        );
        let key = [day.as_str(), region, "s3", "aws4_request"]
            .iter()
            .fold(format!("AWS4{secret_key}").into_bytes(), |key, part| mac(&key, part));
        format!(
            "AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={}",
            hex(&mac(&key, &text))
        )
    }
}

/// Returns a time as the header `x-amz-date` has it.
pub(crate) fn amz_date(at: Timestamp) -> String {
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes a key as a path. All but letters, digits, `-`, `.`, `_`, `~` and `/` is encoded.
pub(crate) fn encode_path(key: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    key.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of AWS's documentation ("Signature Calculations for the Authorization Header").
    #[test]
    fn requests_are_signed_as_in_the_examples_of_aws() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let host = ("host", "examplebucket.s3.amazonaws.com");
        let date = ("x-amz-date", "20130524T000000Z");
        let sign = |method, path, headers: &[(&str, &str)], body_sha256| {
            let at = "2013-05-24T00:00:00Z".parse().unwrap();
            let call = SignedCall { method, path, headers, body_sha256, region: "us-east-1", at };
            let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
            call.authorize("AKIAIOSFODNN7EXAMPLE", secret)
        };
        let get = [host, ("range", "bytes=0-9"), ("x-amz-content-sha256", empty), date];
        assert_eq!(
            sign("GET", "/test.txt", &get, empty),
            "AWS4-HMAC-SHA256 \
             Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let body = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        let put = [
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            host,
            ("x-amz-content-sha256", body),
            date,
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ];
        let signed = sign("PUT", &encode_path("/test$file.text"), &put, body);
        let expected = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd";
        assert!(signed.ends_with(expected), "{signed}");
    }

    #[test]
    fn keys_are_encoded_by_bytes() {
        assert_eq!(encode_path("a/b c+ä~1"), "a/b%20c%2B%C3%A4~1");
    }
}
