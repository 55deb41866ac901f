//! Decides which channels receive an event, and when.
//!
//! Start at [`plan_notices`].

use heeler_config::{AgentConfig, NotifyChannel, NotifyConfig, NotifyEvent, QuietHours};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};

/// A channel that receives an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoticePlan {
    pub(crate) channel: String,
    /// Not sent before this time.
    pub(crate) due_at: Timestamp,
    /// May be sent together with other events.
    pub(crate) in_digest: bool,
}

/// Returns the channels that receive an event of an agent, or of the fleet. The channels of the
/// agent come first, then those that receive a question that stays open.
pub(crate) fn plan_notices(
    config: &NotifyConfig,
    agent: Option<&AgentConfig>,
    event: NotifyEvent,
    (now, zone): (Timestamp, &TimeZone),
) -> Vec<NoticePlan> {
    let named = agent.and_then(|agent| agent.notify.as_ref());
    let is_receiver = |channel: &&NotifyChannel| {
        let is_named = named.is_none_or(|names| names.iter().any(|name| channel.is_receiver(name)));
        is_named && channel.events.contains(&event)
    };
    let direct: Vec<&NotifyChannel> = config.channels.iter().filter(is_receiver).collect();
    let mut receivers: Vec<(&NotifyChannel, Timestamp)> =
        direct.iter().map(|channel| (*channel, now)).collect();
    if event == NotifyEvent::Question {
        for channel in direct {
            add_escalations(config, channel, now, &mut receivers);
        }
    }
    receivers.into_iter().map(|(channel, at)| plan(channel, event, at, zone)).collect()
}

/// Adds the channels to which a question of a channel escalates. A channel receives a question once,
/// at the earliest time.
fn add_escalations<'c>(
    config: &'c NotifyConfig,
    channel: &'c NotifyChannel,
    now: Timestamp,
    receivers: &mut Vec<(&'c NotifyChannel, Timestamp)>,
) {
    let mut at = now;
    let mut next = channel.escalate.as_ref();
    // The config has no circle, so the chain ends.
    while let Some(escalation) = next {
        at = at.checked_add(escalation.after.get()).unwrap_or(Timestamp::MAX);
        next = None;
        for further in config.receivers(&escalation.to) {
            match receivers.iter_mut().find(|(known, _)| known.name == further.name) {
                Some((_, earlier)) => *earlier = at.min(*earlier),
                None => receivers.push((further, at)),
            }
            // All channels of a person escalate to the same.
            next = further.escalate.as_ref();
        }
    }
}

fn plan(channel: &NotifyChannel, event: NotifyEvent, at: Timestamp, zone: &TimeZone) -> NoticePlan {
    let digest = channel.digest.filter(|_| event != NotifyEvent::Question);
    let at = match digest {
        Some(digest) => at.checked_add(digest.get()).unwrap_or(Timestamp::MAX),
        None => at,
    };
    let quiet = channel.quiet_hours.as_ref().filter(|quiet| !quiet.except.contains(&event));
    // After the digest, which may be due only in the quiet hours.
    let quiet_end = quiet.and_then(|quiet| end_of_quiet(quiet, at, zone));
    let due_at = quiet_end.unwrap_or(at);
    let in_digest = quiet_end.is_some() || digest.is_some();
    NoticePlan { channel: channel.name.clone(), due_at, in_digest }
}

/// Returns the end of the quiet hours that a time is in.
fn end_of_quiet(quiet: &QuietHours, at: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let zone = quiet.timezone.as_ref().map_or(zone, |zone| zone.zone());
    let local = at.to_zoned(zone.clone());
    let (from, to, time) = (quiet.from.get(), quiet.to.get(), local.time());
    let is_overnight = to < from;
    let is_quiet = match is_overnight {
        true => time >= from || time < to,
        false => time >= from && time < to,
    };
    if !is_quiet {
        return None;
    }
    let day = match is_overnight && time >= from {
        true => local.date().checked_add(1.day()).unwrap_or(local.date()),
        false => local.date(),
    };
    let end = day.to_datetime(to).to_zoned(zone.clone());
    let end = end.map_or(at, |end| end.timestamp());
    // A change of the clock must not turn the wait into none.
    Some(end.max(at.checked_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn config(text: &str) -> heeler_config::LoadedConfig {
        let text = text.to_owned();
        let read = move |_: &camino::Utf8Path| Ok(text.clone());
        heeler_config::load(camino::Utf8Path::new("/f/heeler.yaml"), &read, &BTreeMap::new())
            .unwrap()
    }

    const FLEET: &str = "
notify:
  channels:
    phone:
      desktop: true
      quiet_hours: {from: '22:00', to: '07:00', timezone: Europe/Vienna, except: [takeover]}
      escalate: {after: 10m, to: boss}
    boss: {desktop: true, events: [budget], escalate: {after: 20m, to: last}}
    last: {desktop: true, events: [link_down], digest: 1h}
agents:
  - {name: a, runtime: scripted, script: [{say: hi}]}
  - {name: b, runtime: scripted, script: [{say: hi}], notify: [boss]}
  - {name: c, runtime: scripted, script: [{say: hi}], notify: []}
";

    const PEOPLE: &str = "
notify:
  channels:
    ann-phone: {desktop: true, quiet_hours: {from: '01:00', to: '02:00'}}
    ann-mail: {desktop: true, digest: 5m, events: [question, failed]}
    bob-phone: {desktop: true}
    bob-mail: {desktop: true}
    team: {desktop: true, events: [takeover]}
  people:
    ann:
      channels: [ann-phone, ann-mail]
      events: [question, failed, budget]
      quiet_hours: {from: '22:00', to: '07:00', except: [question]}
      digest: 30m
      escalate: {after: 10m, to: bob}
    bob: {channels: [bob-phone, bob-mail], events: [question], escalate: {after: 20m, to: team}}
agents:
  - {name: a, runtime: scripted, script: [{say: hi}]}
  - {name: b, runtime: scripted, script: [{say: hi}], notify: [ann]}
  - {name: c, runtime: scripted, script: [{say: hi}], notify: [bob-mail, team]}
";

    fn plans(agent: Option<&str>, event: NotifyEvent, at: &str) -> Vec<(String, String, bool)> {
        plans_of(FLEET, agent, event, at)
    }

    fn plans_of(
        fleet: &str,
        agent: Option<&str>,
        event: NotifyEvent,
        at: &str,
    ) -> Vec<(String, String, bool)> {
        let loaded = config(fleet);
        let notify = loaded.fleets[0].notify.as_ref().unwrap();
        let agent = agent.map(|name| loaded.agent(name).unwrap());
        let found = plan_notices(notify, agent, event, (at.parse().unwrap(), &TimeZone::UTC));
        found.into_iter().map(|it| (it.channel, it.due_at.to_string(), it.in_digest)).collect()
    }

    fn told(channel: &str, at: &str, in_digest: bool) -> (String, String, bool) {
        (channel.to_owned(), at.to_owned(), in_digest)
    }

    #[test]
    fn a_question_escalates_along_its_chain() {
        assert_eq!(
            plans(Some("a"), NotifyEvent::Question, "2026-01-05T12:00:00Z"),
            [
                told("phone", "2026-01-05T12:00:00Z", false),
                told("boss", "2026-01-05T12:10:00Z", false),
                told("last", "2026-01-05T12:30:00Z", false),
            ]
        );
        assert_eq!(plans(Some("c"), NotifyEvent::Question, "2026-01-05T12:00:00Z"), []);
    }

    #[test]
    fn quiet_hours_end_in_the_morning_of_their_zone() {
        let evening = plans(Some("a"), NotifyEvent::Failed, "2026-01-05T21:30:00Z");
        assert_eq!(evening, [told("phone", "2026-01-06T06:00:00Z", true)]);
        let night = plans(Some("a"), NotifyEvent::Failed, "2026-01-06T03:00:00Z");
        assert_eq!(night, [told("phone", "2026-01-06T06:00:00Z", true)]);
        let day = plans(Some("a"), NotifyEvent::Failed, "2026-01-06T06:00:00Z");
        assert_eq!(day, [told("phone", "2026-01-06T06:00:00Z", false)]);
        let except = plans(None, NotifyEvent::Takeover, "2026-01-06T03:00:00Z");
        assert_eq!(except, [told("phone", "2026-01-06T03:00:00Z", false)]);
    }

    #[test]
    fn a_digest_collects_all_but_questions() {
        let down = plans(None, NotifyEvent::LinkDown, "2026-01-05T12:00:00Z");
        assert_eq!(
            down,
            [
                told("phone", "2026-01-05T12:00:00Z", false),
                told("last", "2026-01-05T13:00:00Z", true),
            ]
        );
        // Events of an agent that names its channels go to those alone.
        let budget = plans(Some("b"), NotifyEvent::Budget, "2026-01-05T12:00:00Z");
        assert_eq!(budget, [told("boss", "2026-01-05T12:00:00Z", false)]);
    }

    #[test]
    fn a_question_goes_to_all_channels_of_a_person_and_then_to_the_next_person() {
        let noon = "2026-01-05T12:00:00Z";
        assert_eq!(
            plans_of(PEOPLE, Some("b"), NotifyEvent::Question, noon),
            [
                told("ann-phone", noon, false),
                told("ann-mail", noon, false),
                told("bob-phone", "2026-01-05T12:10:00Z", false),
                told("bob-mail", "2026-01-05T12:10:00Z", false),
                told("team", "2026-01-05T12:30:00Z", false),
            ]
        );
        // An agent may name one channel of a person.
        assert_eq!(
            plans_of(PEOPLE, Some("c"), NotifyEvent::Question, noon),
            [told("bob-mail", noon, false), told("team", "2026-01-05T12:20:00Z", false)]
        );
    }

    #[test]
    fn a_channel_of_two_chains_receives_a_question_at_the_earlier_time() {
        let fleet = "
notify:
  channels:
    slow: {desktop: true, escalate: {after: 1h, to: boss}}
    fast: {desktop: true, escalate: {after: 5m, to: boss}}
    boss: {desktop: true, events: [takeover]}
agents: [{name: a, runtime: scripted, script: [{say: hi}]}]
";
        let noon = "2026-01-05T12:00:00Z";
        let expected = [
            told("slow", noon, false),
            told("fast", noon, false),
            told("boss", "2026-01-05T12:05:00Z", false),
        ];
        assert_eq!(plans_of(fleet, Some("a"), NotifyEvent::Question, noon), expected);
    }

    #[test]
    fn the_rules_of_a_person_hold_for_the_channels_that_have_none() {
        let failed = |at| plans_of(PEOPLE, Some("a"), NotifyEvent::Failed, at);
        assert_eq!(
            failed("2026-01-05T12:00:00Z"),
            [
                told("ann-phone", "2026-01-05T12:30:00Z", true),
                told("ann-mail", "2026-01-05T12:05:00Z", true),
            ]
        );
        // The phone has quiet hours of its own.
        assert_eq!(
            failed("2026-01-05T23:00:00Z"),
            [
                told("ann-phone", "2026-01-05T23:30:00Z", true),
                told("ann-mail", "2026-01-06T07:00:00Z", true),
            ]
        );
        // Both the person and the channel must list an event.
        let budget = plans_of(PEOPLE, Some("a"), NotifyEvent::Budget, "2026-01-05T12:00:00Z");
        assert_eq!(budget, [told("ann-phone", "2026-01-05T12:30:00Z", true)]);
        let parked = plans_of(PEOPLE, Some("a"), NotifyEvent::Parked, "2026-01-05T12:00:00Z");
        assert_eq!(parked, []);
    }
}
