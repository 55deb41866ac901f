//! Channels that tell people when they are needed.

use heeler_config::{NotifyEvent, NotifyTarget, SmtpSecurity};

use crate::{load_files, render};

/// Returns the lines of the faults that tell what is wrong.
fn faults(yaml: &str) -> Vec<String> {
    let said = render(&[("heeler.yaml", yaml)], &[]);
    let lines = said.lines().filter(|line| line.starts_with("error"));
    lines.map(|line| line.trim_start_matches("error: ").to_owned()).collect()
}

#[test]
fn channels_have_their_defaults() {
    let text = "
notify:
  smtp: {host: mail.example.com, from: 'Heeler <heeler@example.com>'}
  channels:
    hook: {webhook: {url: 'https://example.com/hook?x=1'}}
    mail: {email: {to: [ann@example.com]}, events: [failed]}
    screen: {desktop: true}
agents:
  - {name: a, runtime: scripted, script: [{say: hi}]}
  - {name: b, runtime: scripted, script: [{say: hi}], notify: [mail]}
";
    let loaded = load_files(&[("heeler.yaml", text)], &[]).unwrap();
    let notify = loaded.fleets[0].notify.as_ref().unwrap();
    assert_eq!(notify.budget_percent, 80);
    let smtp = notify.smtp.as_ref().unwrap();
    assert_eq!((smtp.port, smtp.security), (587, SmtpSecurity::StartTls));
    assert_eq!(notify.channels[0].events, NotifyEvent::ALL);
    assert_eq!(notify.channels[1].events, [NotifyEvent::Failed]);
    assert_eq!(notify.channels[2].target, NotifyTarget::Desktop);
    assert_eq!(loaded.agents[0].notify, None);
    assert_eq!(loaded.agents[1].notify.as_deref(), Some(&["mail".to_owned()][..]));
}

#[test]
fn a_channel_that_cannot_be_honoured_is_refused() {
    let said = faults(
        "
notify:
  smtp: {host: mail.example.com, security: none, user: ann, from: nobody}
  channels:
    none: {events: [failed]}
    off: {desktop: false}
    two: {desktop: true, slack: {}}
    'a b': {desktop: true}
    topic: {ntfy: {url: 'https://ntfy.sh/'}}
    plain: {ntfy: {url: 'http://ntfy.example/x', token_env: T}}
    chat: {telegram: {chat: '@ann'}}
    person: {slack: {channel: U012ANN}}
    deaf: {slack: {approvers: [U012ANN]}}
    word: {discord: {channel: general}}
    mail: {email: {to: ['ann@example.com, bob']}}
    still: {desktop: true, quiet_hours: {from: '07:00', to: '07:00'}}
    lost: {desktop: true, escalate: {after: 5m, to: tow}}
    loop: {desktop: true, escalate: {after: 5m, to: loop}}
    x: {desktop: true, escalate: {after: 5m, to: y}}
    y: {desktop: true, escalate: {after: 5m, to: x}}
",
    );
    let expected = [
        "mail is not sent to mail.example.com without TLS",
        "a login needs a name and a password",
        "`nobody` is not a sender of mail",
        "the channel `none` has not exactly one place",
        "the channel `off` has not exactly one place",
        "the channel `two` has not exactly one place",
        "`a b` is not a name of a channel",
        "the address of ntfy has no topic",
        "the token is not sent to this address",
        "`@ann` is not the ID of a Telegram chat",
        "`U012ANN` is not the ID of a Slack channel",
        "a webhook of Slack receives no answers",
        "`general` is not the ID of a Discord channel",
        "the channel `mail` has no valid receiver",
        "`quiet_hours` begins and ends at the same time",
        "there is no channel or person `tow`",
        "the channel `loop` escalates to itself",
        "the channel `x` escalates to itself",
        "the channel `y` escalates to itself",
    ];
    assert_eq!(said, expected);
}

#[test]
fn settings_of_web_push_that_are_not_safe_are_refused() {
    let web_push = |settings: &str| {
        faults(&format!("notify: {{web_push: {settings}, channels: {{me: {{web_push: true}}}}}}"))
    };
    assert_eq!(web_push("{}"), [""; 0]);
    let good = "{services: ['https://push.example.com', 'http://127.0.0.1:9000'], contact: 'mailto:a@b.example'}";
    assert_eq!(web_push(good), [""; 0]);
    assert_eq!(
        web_push("{services: ['http://push.example.com'], contact: ann}"),
        ["http://push.example.com is not a safe push service", "`ann` is not a contact"]
    );
    assert_eq!(web_push("{contact: 'mailto:ann'}"), ["`mailto:ann` is not a contact"]);
    let closed = "web: {enabled: false}\nnotify: {channels: {me: {web_push: true}}}";
    assert_eq!(faults(closed), ["the channel `me` needs the dashboard"]);
}

#[test]
fn an_agent_names_channels_that_exist() {
    let agent = "agents: [{name: a, runtime: scripted, script: [{say: hi}], notify: [phon]}]";
    assert_eq!(faults(agent), ["there is no channel or person `phon`"]);
    let near = format!("notify: {{channels: {{phone: {{desktop: true}}}}}}\n{agent}");
    let said = render(&[("heeler.yaml", &near)], &[]);
    assert!(said.contains("did you mean `phone`?"), "{said}");
}

#[test]
fn mail_needs_a_server_and_a_fleet_has_a_limit() {
    let mail = "notify: {channels: {mail: {email: {to: [ann@example.com]}}}}";
    assert_eq!(faults(mail), ["the channel `mail` has no mail server"]);
    let many: String = (0..33).map(|n| format!("    c{n}: {{desktop: true}}\n")).collect();
    let many = format!("notify:\n  channels:\n{many}");
    assert_eq!(faults(&many), ["there are more than 32 channels"]);
}

#[test]
fn secrets_of_channels_are_secrets_of_the_fleet() {
    let text = "
notify:
  channels:
    hook: {webhook: {url: 'https://example.com/${TOPIC}', secret_env: HOOK}}
    team: {slack: {url_env: SLACK}}
agents: [{name: a, runtime: scripted, script: [{say: hi}]}]
";
    let env = [("HOOK", "hook-secret"), ("SLACK", "https://hooks/secret"), ("TOPIC", "topic-1")];
    let loaded = load_files(&[("heeler.yaml", text)], &env).unwrap();
    let secrets = loaded.agents[0].fleet_secrets.values();
    assert_eq!(secrets, ["hook-secret", "https://hooks/secret"]);
}

#[test]
fn a_bot_posts_notices_to_a_channel_with_a_token_that_is_a_secret() {
    let text = "
notify:
  channels:
    team: {slack: {channel: C012DEV, bot_token_env: BOT, approvers: [U012ANN]}}
    guild: {discord: {channel: '345678901234567890', bot_token_env: OTHER}}
    hook: {slack: {url_env: HOOK}}
agents: [{name: a, runtime: scripted, script: [{say: hi}]}]
";
    let env = [("BOT", "xoxb-secret"), ("OTHER", "discord-secret"), ("HOOK", "hook-secret")];
    let loaded = load_files(&[("heeler.yaml", text)], &env).unwrap();
    let notify = loaded.fleets[0].notify.as_ref().unwrap();
    let chat = notify.channels[0].target.chat().unwrap();
    assert_eq!((chat.platform, chat.chat, chat.token_variable), ("slack", "C012DEV", "BOT"));
    assert_eq!(chat.approvers, ["U012ANN".to_owned()]);
    let chat = notify.channels[1].target.chat().unwrap();
    assert_eq!((chat.platform, chat.chat), ("discord", "345678901234567890"));
    assert_eq!(notify.channels[2].target.chat(), None, "a webhook is no chat");
    let secrets = loaded.agents[0].fleet_secrets.values();
    assert_eq!(secrets, ["discord-secret", "hook-secret", "xoxb-secret"]);
}

#[test]
fn people_share_their_rules_with_their_channels() {
    let text = "
notify:
  channels:
    phone: {desktop: true, events: [question, failed]}
    mail: {desktop: true, digest: 1h}
    team: {desktop: true}
  people:
    ann: {channels: [phone, mail], events: [question, budget], digest: 5m, escalate: {after: 5m, to: team}}
agents:
  - {name: a, runtime: scripted, script: [{say: hi}], notify: [ann, team]}
";
    let loaded = load_files(&[("heeler.yaml", text)], &[]).unwrap();
    let notify = loaded.fleets[0].notify.as_ref().unwrap();
    let [phone, mail, team] = &notify.channels[..] else { panic!("{notify:?}") };
    assert_eq!(phone.events, [NotifyEvent::Question]);
    assert_eq!(mail.events, [NotifyEvent::Question, NotifyEvent::Budget]);
    let minutes =
        |digest: Option<heeler_config::ConfigDuration>| digest.unwrap().get().as_secs() / 60;
    assert_eq!((minutes(phone.digest), minutes(mail.digest)), (5, 60));
    assert_eq!(mail.escalate.as_ref().unwrap().to, "team");
    assert_eq!((phone.person.as_deref(), team.person.as_deref()), (Some("ann"), None));
    let names: Vec<&str> = notify.receivers("ann").map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["phone", "mail"]);
}

#[test]
fn a_person_who_cannot_be_reached_as_written_is_refused() {
    let said = faults(
        "
notify:
  channels:
    phone: {desktop: true, escalate: {after: 5m, to: bob}}
    mail: {desktop: true, events: [failed]}
    team: {desktop: true}
  people:
    team: {channels: [phone]}
    'a b': {channels: [phone]}
    bob: {channels: []}
    cat: {channels: [mial]}
    dan: {channels: [mail], events: [question], quiet_hours: {from: '07:00', to: '07:00'}}
    eve: {channels: [team], escalate: {after: 5m, to: fay}}
    fay: {channels: [], escalate: {after: 5m, to: team}}
    guy: {channels: [], escalate: {after: 5m, to: non}}
",
    );
    let expected = [
        "`team` is the name of a channel and of a person",
        "the channel `phone` of `team` has its own `escalate`",
        "`a b` is not a name of a person",
        "the channel `phone` belongs to `team` already",
        "the channel `phone` of `a b` has its own `escalate`",
        "`bob` has no channel",
        "there is no channel `mial`",
        "`quiet_hours` begins and ends at the same time",
        "the channel `mail` receives no event of `dan`",
        "`fay` has no channel",
        "`guy` has no channel",
        "the person `eve` escalates to itself",
        "the person `fay` escalates to itself",
        "there is no channel or person `non`",
    ];
    for message in expected {
        assert!(said.iter().any(|it| it.contains(message)), "{message}: {said:#?}");
    }
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    let said = faults(
        "
notify: {channels: {phone: {desktop: true}}, people: {dan: {channels: [phone]}}}
agents: [{name: a, runtime: scripted, script: [{say: hi}], notify: [dan, dna]}]
",
    );
    assert_eq!(said, ["there is no channel or person `dna`"]);
}

#[test]
fn the_authorities_of_a_mail_server_are_beside_the_config_and_need_tls() {
    let config = |security: &str| {
        format!(
            "
notify:
  smtp: {{host: localhost, security: {security}, ca_file: own/ca.pem, from: heeler@fleet.example}}
  channels: {{mail: {{email: {{to: [ann@fleet.example]}}}}}}
"
        )
    };
    let loaded = load_files(&[("heeler.yaml", &config("tls"))], &[]).unwrap();
    let smtp = loaded.fleets[0].notify.as_ref().unwrap().smtp.as_ref().unwrap();
    let beside = loaded.fleets[0].file.parent().unwrap().join("own/ca.pem");
    assert_eq!(smtp.ca_file.as_ref(), Some(&beside));
    assert_eq!(faults(&config("none")), ["`ca_file` has no effect without TLS"]);
}

#[test]
fn a_person_stands_for_the_ids_of_the_person_on_chat_platforms() {
    let text = "
notify:
  channels:
    ops: {slack: {channel: C012OPS, approvers: [ann]}}
  people:
    ann: {accounts: {slack: U012ANN, telegram: '42'}}
agents:
  - name: a
    runtime: scripted
    script: [{say: hi}]
    chat:
      slack: {dm: {allowlist: [ann, U012BOB], blocklist: [ann]}, allow: [ann], approvers: [ann], operators: [ann]}
      telegram: {approvers: [ann]}
      discord: {approvers: [ann], guilds: [{id: '1', dm: {allowlist: [ann]}}]}
";
    let loaded = load_files(&[("heeler.yaml", text)], &[]).unwrap();
    let chat = loaded.agents[0].chat.as_ref().unwrap();
    let slack = chat.slack.as_ref().unwrap();
    let direct = slack.dm.as_ref().unwrap();
    assert_eq!(direct.allowlist.as_deref().unwrap(), ["U012ANN", "U012BOB"]);
    for list in [
        &direct.blocklist,
        slack.allow.as_ref().unwrap(),
        &slack.approvers,
        slack.operators.as_ref().unwrap(),
    ] {
        assert_eq!(*list, ["U012ANN"]);
    }
    assert_eq!(chat.telegram.as_ref().unwrap().approvers, ["42"]);
    // She has no account there, so the name stands for no one.
    assert_eq!(chat.discord.as_ref().unwrap().approvers, ["ann"]);
    let notify = loaded.fleets[0].notify.as_ref().unwrap();
    let NotifyTarget::Slack(ops) = &notify.channels[0].target else { panic!("another target") };
    assert_eq!(ops.approvers, ["U012ANN"]);
}
