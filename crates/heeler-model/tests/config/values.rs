//! What single values may be.
use expect_test::expect;

use crate::check_agent;

#[test]
fn every_leaf_fault_is_reported_at_once() {
    check_agent(
        "max_turns: lots\ntimeout: 5x\nruntime: skd\nmodle: opus\ninstances: {max_concurrent: 0}\nschedules:\n  s: {interval: 5x}\n  t: {prompt: hi}\n  u: {interval: 1h, cron: '* * * * *'}\n",
        expect![[r#"
            error: expected a whole number of at least 1, found `lots`
             --> a.yaml:2:12
              |
            2 | max_turns: lots
              |            ^^^^ expected a whole number of at least 1

            error: `5x` is not a duration: the unit must be ms, s, m, h, d or w
             --> a.yaml:3:10
              |
            3 | timeout: 5x
              |          ^^ expected a duration such as `1h30m`

            error: expected one of: sdk, cli, scripted, command; found `skd`
             --> a.yaml:4:10
              |
            4 | runtime: skd
              |          ^^^ expected one of: sdk, cli, scripted, command

            error: unknown key `modle` in agent
             --> a.yaml:5:1
              |
            5 | modle: opus
              | ^^^^^ did you mean `model`?

            error: expected a whole number of at least 1, found `0`
             --> a.yaml:6:29
              |
            6 | instances: {max_concurrent: 0}
              |                             ^ expected a whole number of at least 1

            error: `5x` is not a duration: the unit must be ms, s, m, h, d or w
             --> a.yaml:8:17
              |
            8 |   s: {interval: 5x}
              |                 ^^ expected a duration such as `1h30m`

            error: nothing starts the schedule `t`
             --> a.yaml:9:7
              |
            9 |   t: {prompt: hi}
              |       ^^^^^^ `interval` or `cron` belongs here

            error: the schedule `u` has both `interval` and `cron`
              --> a.yaml:10:27
               |
            10 |   u: {interval: 1h, cron: '* * * * *'}
               |                           ^^^^^^^^^^^ keep one, or say which with `type`
        "#]],
    );
}
