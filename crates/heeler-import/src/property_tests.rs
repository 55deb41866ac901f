//! Property tests of the readers: arbitrary input gives a record or a reason, never a panic.

use heeler_store::{LenientRecord, view_records};
use proptest::prelude::*;
use serde_json::Value;

use super::agents_fleet::read::AgentsFleetSession;
use super::herdctl::read;

/// Text that starts as a record and is truncated or followed by arbitrary text.
fn near_records() -> impl Strategy<Value = String> {
    let good = prop::sample::select(vec![
        "id: job-1\nagent: a\nstatus: running\nstarted_at: 2026-01-01T00:00:00Z\nusage: {per_model: {m: {input_tokens: 9223372036854775807}}}\n",
        "agents:\n  a:\n    status: idle\n    schedules: {s: {status: idle}}\n",
        "version: 3\nagentName: a\nchannels:\n  \"1\": {sessionId: s, lastMessageAt: 2026-01-01T00:00:00Z}\n",
        r#"{"agent_name":"a","session_id":"s","last_used_at":"2026-01-01T00:00:00Z","job_count":1e300}"#,
        r#"{"id":"a","schemaVersion":2,"transcript":[1,{}],"workers":[{"transcriptPath":"x"},7,null]}"#,
    ]);
    (good, any::<prop::sample::Index>(), any::<String>()).prop_map(|(good, cut, tail)| {
        let cut = good.floor_char_boundary(cut.index(good.len() + 1));
        format!("{}{tail}", &good[..cut])
    })
}

proptest! {
    #[test]
    fn readers_answer_whatever_they_are_given(
        text in prop_oneof![any::<String>(), near_records()],
        stem in prop_oneof![any::<String>(), Just("a".to_owned()), Just("job-1".to_owned())],
    ) {
        if let Ok(read) = view_records::parse_job(&stem, &text) {
            prop_assert_eq!(read.job.head.id.as_str(), stem.as_str());
            prop_assert!(read.job.head.summary.is_none_or(|text| text.len() <= 2048));
        }
        if let Ok(session) = view_records::parse_session(&stem, &text) {
            prop_assert!(session.created_at <= session.last_active_at || session.job_count >= 0);
        }
        drop((
            read::chat_sessions("slack", &stem, &text),
            read::adopted_session(&stem, &text),
        ));
        drop((view_records::parse_agents(&text), LenientRecord::yaml(&text), LenientRecord::json(&text)));
    }

    #[test]
    fn raising_a_fleet_session_keeps_every_key(text in near_records()) {
        let Ok(read) = AgentsFleetSession::read("a", &text) else { return Ok(()) };
        let raised: Value = serde_json::from_slice(&read.upgraded_json(1)).unwrap();
        let original: Value = serde_json::from_str(&text).unwrap();
        for key in original.as_object().unwrap().keys() {
            prop_assert!(raised.get(key).is_some(), "{}", key);
        }
        for worker in &read.workers {
            prop_assert!(!worker.contains('/') && worker != "..");
        }
    }
}
