//! Where people say who they are.

use maud::{DOCTYPE, Markup, html};

use crate::frame::head;

/// What the page of the login shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoginView {
    /// Where to go after that.
    pub next: String,
    /// The name that was given, if one was.
    pub name: String,
    /// Why it was refused, if it was.
    pub refused: Option<String>,
}

/// Returns the page of the login.
pub fn page(view: &LoginView) -> Markup {
    let LoginView { next, name, refused } = view;
    html! {
        (DOCTYPE)
        html lang="en" {
            head { (head("Log in", "Heeler")) }
            body {
                main.centre {
                    div.card {
                        span.brand { "Heeler" }
                        h1 { "Log in" }
                        @if let Some(why) = refused { p.banner.bad role="alert" { (why) } }
                        form.stack method="post" action="/login" {
                            input type="hidden" name="next" value=(next);
                            div.field {
                                label for="name" { "Name" }
                                input #name name="name" value=(name) autocomplete="username"
                                    autocapitalize="none" spellcheck="false" required;
                            }
                            div.field {
                                label for="password" { "Password" }
                                input #password name="password" type="password"
                                    autocomplete="current-password" required;
                            }
                            button.button.primary type="submit" { "Log in" }
                        }
                        p.note {
                            "No password? " code { "heeler open" }
                            " on the machine where the fleet runs lets you in; "
                            code { "heeler password set" } " makes a password."
                        }
                    }
                }
            }
        }
    }
}

/// Returns the page of a one-time link that counted. It goes on by itself: a cookie for this site
/// alone is not sent where another site or program led here.
pub fn entered(next: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                (head("Logged in", "Heeler"))
                meta http-equiv="refresh" content={ "0;url=" (next) };
            }
            body {
                main.centre {
                    div.card {
                        span.brand { "Heeler" }
                        h1 { "You are logged in" }
                        p { a.button.primary href=(next) { "Go on" } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_shown_as_text() {
        let view = LoginView {
            next: "/jobs?a=\"b\"".to_owned(),
            name: "<script>".to_owned(),
            refused: Some("no & never".to_owned()),
        };
        let page = page(&view).into_string();
        assert!(page.contains("value=\"&lt;script&gt;\""), "{page}");
        assert!(page.contains("value=\"/jobs?a=&quot;b&quot;\""), "{page}");
        assert!(page.contains("no &amp; never"), "{page}");
    }
}
