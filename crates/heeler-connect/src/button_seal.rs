//! Values of buttons that only the fleet can have made.
//!
//! A value names a question and an answer. Its seal is an HMAC with a key that is derived from the
//! bot token, over the question as it was shown and the place where it was posted. So a value from
//! another place, of another question, or of a question that changed since does not count. Start at
//! [`ButtonSeal`].

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

/// Bytes of the seal in a value. A platform has room for 64 bytes in all.
const SEAL_BYTES: usize = 16;

/// Makes and checks the values of buttons.
#[derive(Debug, Clone)]
pub struct ButtonSeal {
    key: hmac::Key,
}

/// Answer that a button stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ButtonVerdict {
    Allow,
    Deny,
    /// The option with this number, counted from 1.
    Choose(u8),
}

/// A question and an answer, as a button names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ButtonClaim {
    pub question: String,
    pub verdict: ButtonVerdict,
}

impl ButtonVerdict {
    fn letter(self) -> char {
        match self {
            ButtonVerdict::Allow => 'a',
            ButtonVerdict::Deny => 'd',
            ButtonVerdict::Choose(number) => char::from(b'0' + number.min(9)),
        }
    }

    fn from_letter(text: &str) -> Option<ButtonVerdict> {
        match text.as_bytes() {
            b"a" => Some(ButtonVerdict::Allow),
            b"d" => Some(ButtonVerdict::Deny),
            [digit @ b'1'..=b'9'] => Some(ButtonVerdict::Choose(digit - b'0')),
            _ => None,
        }
    }
}

impl ButtonSeal {
    /// Derives the key from a bot token, which agents do not have.
    pub fn from_token(token: &str) -> ButtonSeal {
        let derived =
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes()), b"heeler buttons");
        ButtonSeal { key: hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()) }
    }

    /// Returns the value of a button. `shown` is the hash of the question, `channel` the place.
    pub fn value(&self, claim: &ButtonClaim, shown: &str, channel: &str) -> String {
        let tag = hmac::sign(&self.key, &sealed_text(claim, shown, channel));
        let seal = URL_SAFE_NO_PAD.encode(&tag.as_ref()[..SEAL_BYTES]);
        format!("{}:{}:{seal}", claim.verdict.letter(), claim.question)
    }

    /// Returns the claim of a value without checking it, to look up its question.
    pub fn claim_of(value: &str) -> Option<ButtonClaim> {
        let (letter, rest) = value.split_once(':')?;
        let (question, _) = rest.rsplit_once(':')?;
        let verdict = ButtonVerdict::from_letter(letter)?;
        Some(ButtonClaim { question: question.to_owned(), verdict })
    }

    /// Returns true if this fleet made the value for this question and place. The comparison takes
    /// the same time for every value.
    pub fn is_genuine(&self, value: &str, shown: &str, channel: &str) -> bool {
        let Some(claim) = ButtonSeal::claim_of(value) else { return false };
        let expected = self.value(&claim, shown, channel);
        // Comparing their HMACs tells an attacker nothing about the first differing byte.
        let expected = hmac::sign(&self.key, expected.as_bytes());
        hmac::verify(&self.key, value.as_bytes(), expected.as_ref()).is_ok()
    }
}

fn sealed_text(claim: &ButtonClaim, shown: &str, channel: &str) -> Vec<u8> {
    let verdict = claim.verdict.letter().to_string();
    // No part contains a zero byte, so no two claims have the same text.
    [claim.question.as_str(), &verdict, shown, channel].join("\0").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_value_for_this_question_answer_and_place_counts() {
        let seal = ButtonSeal::from_token("12345:token");
        let claim = |verdict| ButtonClaim { question: "ask-2026-11-15-k3v9q1-7".into(), verdict };
        let allow = seal.value(&claim(ButtonVerdict::Allow), "hash", "telegram/1");
        assert!(allow.len() <= 64, "{allow}");
        assert_eq!(ButtonSeal::claim_of(&allow), Some(claim(ButtonVerdict::Allow)));
        assert!(seal.is_genuine(&allow, "hash", "telegram/1"));
        assert!(!seal.is_genuine(&allow, "other", "telegram/1"), "the question changed");
        assert!(!seal.is_genuine(&allow, "hash", "telegram/2"), "another place");
        let turned = allow.replacen("a:", "d:", 1);
        assert!(!seal.is_genuine(&turned, "hash", "telegram/1"), "the answer was changed");
        let other = ButtonSeal::from_token("12345:another");
        assert!(!other.is_genuine(&allow, "hash", "telegram/1"), "another token");
        for text in ["", "a", "a:b", "x:ask-1:seal", "0:ask-1:seal", "a:ask-1:"] {
            assert!(!seal.is_genuine(text, "hash", "telegram/1"), "{text}");
        }
        let third = seal.value(&claim(ButtonVerdict::Choose(3)), "hash", "telegram/1");
        assert_eq!(ButtonSeal::claim_of(&third), Some(claim(ButtonVerdict::Choose(3))));
    }
}
