//! Transcription of voice messages by a service with the form of OpenAI's `/v1/audio/transcriptions`.
//!
//! Start at [`transcribe`].

use std::time::Duration;

use crate::api_call::{PlatformAnswer, RequestBody, post_body, safe_text};
use crate::chat_error::ChatApiError;

/// Name of the service in errors.
const SERVICE: &str = "the transcription service";

/// Name of the call in errors.
const ATTEMPT: &str = "transcribe a voice message";

/// Longest transcript, in characters. The rest is left out.
const TRANSCRIPT_CHARS_MAX: usize = 20_000;

/// A voice message to transcribe.
#[derive(Clone, Copy)]
pub struct TranscriptionRequest<'a> {
    /// Address of the service, without a slash at its end.
    pub api_url: &'a str,
    pub key: &'a str,
    /// Variable that holds the key, for errors.
    pub variable: &'a str,
    pub model: &'a str,
    pub language: Option<&'a str>,
    /// Name of the file: letters, digits and dots.
    pub name: &'a str,
    pub media_type: &'a str,
    pub audio: &'a [u8],
    pub timeout: Duration,
}

/// Returns the words of a voice message.
pub fn transcribe(request: &TranscriptionRequest<'_>) -> Result<String, ChatApiError> {
    let url = format!("{}/audio/transcriptions", request.api_url);
    let boundary = boundary(request);
    let bytes = encode(request, &boundary);
    let content_type = format!("multipart/form-data; boundary={boundary}");
    let body = RequestBody::Bytes { content_type: &content_type, bytes: &bytes };
    let answer = post_body(&url, Some(request.key), body, request.timeout);
    let answer = answer.map_err(unreachable)?;
    if !(200..300).contains(&answer.status) {
        return Err(refusal(request, &answer));
    }
    let text = answer.body["text"].as_str().map(str::trim).filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| refused("it found no words in it".to_owned()))?;
    Ok(text.chars().take(TRANSCRIPT_CHARS_MAX).collect())
}

fn refusal(request: &TranscriptionRequest<'_>, answer: &PlatformAnswer) -> ChatApiError {
    let said = answer.body["error"]["message"].as_str().unwrap_or_default();
    let said = format!("status {} {}", answer.status, safe_text(said));
    let said = said.trim().to_owned();
    match answer.status {
        401 | 403 => ChatApiError::Unauthorized {
            platform: SERVICE,
            variable: request.variable.to_owned(),
            // Services repeat a part of the key.
            said: format!("status {}", answer.status),
        },
        429 => ChatApiError::RateLimited {
            platform: SERVICE,
            attempt: ATTEMPT,
            retry_after: Duration::from_secs(answer.retry_after.unwrap_or(1)),
        },
        status if status >= 500 => unreachable(said),
        _ => refused(said),
    }
}

fn unreachable(reason: String) -> ChatApiError {
    ChatApiError::Unreachable { attempt: ATTEMPT, reason }
}

fn refused(said: String) -> ChatApiError {
    ChatApiError::Refused { platform: SERVICE, attempt: ATTEMPT, said }
}

/// Returns a text that does not occur in the audio. A stranger recorded it.
fn boundary(request: &TranscriptionRequest<'_>) -> String {
    let occurs = |boundary: &String| {
        request.audio.windows(boundary.len()).any(|part| part == boundary.as_bytes())
    };
    let mut number = 0_u32;
    loop {
        let boundary = format!("heeler-audio-{number:08}");
        if !occurs(&boundary) {
            return boundary;
        }
        number += 1;
    }
}

fn encode(request: &TranscriptionRequest<'_>, boundary: &str) -> Vec<u8> {
    let fields = [
        ("model", Some(request.model)),
        ("language", request.language),
        ("response_format", Some("json")),
    ];
    let mut body = String::new();
    for (name, value) in fields {
        let Some(value) = value else { continue };
        body.push_str(&format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        ));
    }
    body.push_str(&format!(
        "--{boundary}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{}\"\r\n\
         content-type: {}\r\n\r\n",
        request.name, request.media_type
    ));
    let mut bytes = body.into_bytes();
    bytes.extend_from_slice(request.audio);
    bytes.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sound_ends_its_part() {
        let audio = b"--heeler-audio-00000000\r\n";
        let request = TranscriptionRequest {
            api_url: "http://127.0.0.1:1",
            key: "k",
            variable: "KEY",
            model: "whisper-1",
            language: None,
            name: "voice.ogg",
            media_type: "audio/ogg",
            audio,
            timeout: Duration::from_secs(1),
        };
        let boundary = boundary(&request);
        assert_eq!(boundary, "heeler-audio-00000001");
        let encoded = String::from_utf8(encode(&request, &boundary)).unwrap();
        assert_eq!(encoded.matches("--heeler-audio-00000001").count(), 4, "{encoded}");
        assert!(!encoded.contains("language"));
    }
}
