//! Webhook deliveries that no daemon received. GitHub keeps them for a few days.
//!
//! Only deliveries that got no answer of Heeler are fetched: an event that Heeler has refused stays
//! refused. Each event is then handled like a delivery: by the rules of the schedules, and once. Start
//! at [`fetch_missed_calls`].

use std::collections::HashSet;

use heeler_config::webhook::WebhookPayload;
use heeler_config::{GithubAccess, GithubConfig};
use heeler_github::{
    GithubClient, GithubError, GithubRepo, GithubWebhook, HookDelivery, HookDeliveryRequest,
    WebhookOwner,
};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use super::connection::GithubConnection;
use crate::command::{WEBHOOK_BYTES_MAX, WebhookCall};
use crate::dispatch::WebhookSecret;
use crate::setup::DaemonSetup;

/// Time before a fetch in which a delivery may not be listed as failed yet: GitHub waits ten seconds for
/// a receiver.
pub(crate) const DELIVERY_MARGIN: SignedDuration = SignedDuration::from_mins(5);

/// Oldest deliveries that are fetched. GitHub keeps them for three days.
const DELIVERY_AGE_MAX: SignedDuration = SignedDuration::from_hours(72);

/// Most deliveries of one webhook that are looked at, newest first.
const LISTED_MAX: usize = 1_000;

/// Most missed events of one webhook that are fetched, newest first.
const FETCHED_MAX: usize = 250;

/// Path at which a daemon receives the events of GitHub.
const EVENTS_PATH: &str = "/hooks/github";

/// Bytes of an HMAC-SHA256 as hexadecimal digits.
const MAC_DIGITS: usize = 64;

/// Returns true if missed events could start something.
pub(crate) fn wants_missed_deliveries(setup: &DaemonSetup) -> bool {
    let root = setup.root();
    let has_access =
        root.and_then(|root| root.github.as_ref()).is_some_and(|github| github.access.is_some());
    let is_signed = |secret| matches!(secret, WebhookSecret::Set(_));
    has_access
        && setup.accepts_webhooks()
        && root.is_some_and(|root| !root.web.origins.is_empty())
        && setup.github_webhooks().iter().any(|hook| is_signed(setup.webhook_secret(hook.rules)))
}

/// Fetches the events since a time that no daemon received, as calls of schedules, oldest first.
pub(crate) fn fetch_missed_calls(
    setup: &DaemonSetup,
    connection: &GithubConnection,
    since: Timestamp,
    now: Timestamp,
) -> Result<Vec<WebhookCall>, GithubError> {
    let root = setup.root();
    let Some((root, github)) = root.and_then(|root| Some((root, root.github.as_ref()?))) else {
        return Ok(Vec::new());
    };
    let origins: Vec<&str> = root.web.origins.iter().map(|origin| origin.as_str()).collect();
    let oldest = now.checked_sub(DELIVERY_AGE_MAX).unwrap_or(since).max(since);
    let mut missed = Vec::new();
    for hook in own_webhooks(&connection.client, github, &origins)? {
        let listed = connection.client.hook_deliveries(&hook, LISTED_MAX)?;
        for delivery in select_missed(&listed, oldest, installation(github)) {
            let request = connection.client.hook_delivery(&hook, delivery.id)?;
            missed.push((delivery.delivered_at, delivery.guid.clone(), request));
        }
    }
    missed.sort_by_key(|(at, ..)| *at);
    let calls = missed.iter().flat_map(|(_, guid, request)| event_calls(setup, guid, request));
    Ok(calls.collect())
}

/// Returns the webhooks that deliver to this fleet. Others may be those of other programs or fleets.
fn own_webhooks(
    client: &GithubClient,
    github: &GithubConfig,
    origins: &[&str],
) -> Result<Vec<GithubWebhook>, GithubError> {
    let mut found: Vec<GithubWebhook> = Vec::new();
    for repo in &github.repos {
        let Ok(repo) = repo.as_str().parse::<GithubRepo>() else { continue };
        match client.webhooks(&repo) {
            Ok(hooks) => found.extend(hooks),
            // A token may be able to use some repositories only in part.
            Err(error @ (GithubError::Forbidden { .. } | GithubError::NotFound { .. })) => {
                tracing::info!(%repo, %error, "missed deliveries are not fetched");
            }
            Err(error) => return Err(error),
        }
        // An App has one webhook for all repositories.
        if found.first().is_some_and(|hook| hook.owner == WebhookOwner::App) {
            break;
        }
    }
    found.retain(|hook| is_own_address(&hook.url, origins));
    Ok(found)
}

fn is_own_address(url: &str, origins: &[&str]) -> bool {
    url.parse::<url::Url>().is_ok_and(|url| {
        let origin = url.origin().ascii_serialization();
        url.path().trim_end_matches('/') == EVENTS_PATH && origins.contains(&origin.as_str())
    })
}

fn installation(github: &GithubConfig) -> Option<u64> {
    match github.access {
        Some(GithubAccess::App { installation, .. }) => Some(installation),
        _ => None,
    }
}

/// Selects one attempt for each event that no receiver answered.
fn select_missed(
    listed: &[HookDelivery],
    oldest: Timestamp,
    installation: Option<u64>,
) -> Vec<&HookDelivery> {
    let is_answered = |it: &HookDelivery| (100..500).contains(&it.status_code);
    let answered: HashSet<&str> =
        listed.iter().filter(|it| is_answered(it)).map(|it| it.guid.as_str()).collect();
    let mut seen = HashSet::new();
    let missed = listed.iter().filter(|it| {
        // Other people may install the same App.
        let is_own = installation.is_none_or(|own| it.installation_id == Some(own));
        is_own
            && it.delivered_at >= oldest
            && !answered.contains(it.guid.as_str())
            && seen.insert(it.guid.as_str())
    });
    missed.take(FETCHED_MAX).collect()
}

/// Returns the calls of the schedules that an event starts.
fn event_calls(setup: &DaemonSetup, guid: &str, request: &HookDeliveryRequest) -> Vec<WebhookCall> {
    let text = request.payload.to_string();
    let sent =
        WebhookPayload { event: Some(&request.event), text: &text, json: Some(&request.payload) };
    // GitHub itself is asked, so the signature proves nothing here. It identifies the event.
    let mac = request.signature.as_deref().and_then(mac_digest);
    let hooks = setup.github_webhooks();
    let signed = hooks
        .iter()
        .filter(|hook| matches!(setup.webhook_secret(hook.rules), WebhookSecret::Set(_)));
    let calls = signed.filter_map(|hook| hook.build_call(&sent, Some(guid.to_owned())).ok());
    let calls = calls.filter(|call| call.payload.len() <= WEBHOOK_BYTES_MAX);
    calls.map(|call| WebhookCall { mac: mac.clone(), ..call }).collect()
}

/// Returns the digest under which a call with this signature is remembered.
fn mac_digest(signature: &str) -> Option<String> {
    let digits = signature.strip_prefix("sha256=").filter(|it| it.len() == MAC_DIGITS)?;
    let digit = |byte: u8| (byte as char).to_digit(16);
    let pairs = digits.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> =
        pairs.map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()).collect();
    Some(Sha256::digest(bytes?).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(id: u64, guid: &str, second: i64, status_code: u16) -> HookDelivery {
        let delivered_at = Timestamp::from_second(second).unwrap();
        HookDelivery { id, guid: guid.into(), delivered_at, status_code, installation_id: Some(2) }
    }

    #[test]
    fn an_event_is_missed_if_no_attempt_was_answered() {
        let stranger = HookDelivery { installation_id: Some(3), ..delivery(1, "other", 90, 502) };
        let listed = [
            delivery(9, "repeated", 99, 200),
            delivery(8, "twice", 98, 504),
            delivery(7, "refused", 97, 401),
            delivery(6, "repeated", 96, 502),
            delivery(5, "twice", 95, 0),
            delivery(4, "old", 10, 502),
            stranger,
        ];
        let oldest = Timestamp::from_second(50).unwrap();
        let ids = |installation| -> Vec<u64> {
            select_missed(&listed, oldest, installation).iter().map(|it| it.id).collect()
        };
        assert_eq!(ids(Some(2)), [8]);
        assert_eq!(ids(None), [8, 1], "a webhook of a repository belongs to no installation");
    }

    #[test]
    fn only_the_webhook_of_this_fleet_counts() {
        let origins = ["https://heeler.example.com"];
        for (url, is_own) in [
            ("https://heeler.example.com/hooks/github", true),
            ("https://heeler.example.com:443/hooks/github/", true),
            ("https://staging.example.com/hooks/github", false),
            ("https://heeler.example.com/hooks/coder/push", false),
            ("https://heeler.example.com.evil.example/hooks/github", false),
            ("", false),
        ] {
            assert_eq!(is_own_address(url, &origins), is_own, "{url}");
        }
    }

    #[test]
    fn a_fetched_event_is_remembered_like_a_delivered_one() {
        let digest = mac_digest(&format!("sha256={}", "0a".repeat(32))).unwrap();
        let expected: String =
            Sha256::digest([10; 32]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, expected);
        for wrong in ["", "sha256=", "sha256=zz", "sha1=00"] {
            assert_eq!(mac_digest(wrong), None, "{wrong}");
        }
    }
}
