//! The page on which the API is read and tried, in a browser.

use crate::browser::{Look, Site, with_browser};
use crate::fleet::Fleet;

const FLEET: &str = "
web: {port: auto}
agents: [{name: coder, runtime: scripted, script: [{say: 'You said {prompt}'}]}]
";

#[test]
fn the_api_is_read_and_tried_on_its_page() {
    let fleet = Fleet::empty();
    fleet.write("heeler.yaml", FLEET);
    let site = Site::start(fleet);
    with_browser(&site, Look::DESKTOP, async |browser| {
        browser.visit("/api/v1/docs").await;
        browser.wait_for("main h1", "API").await;
        browser.check("api").await;

        let form = "form[data-try='POST /api/v1/jobs']";
        browser.click(&format!("details:has({form}) summary")).await;
        let body = format!("{form} textarea");
        browser.page.find(thirtyfour::By::Css(&body)).await.unwrap().clear().await.unwrap();
        browser.type_into(&body, r#"{"agent": "coder", "prompt": "Hello."}"#).await;
        browser.click(&format!("{form} button")).await;
        browser.wait_for(&format!("{form} pre"), "200 OK").await;
        browser.wait_for(&format!("{form} pre"), "job-").await;
        let form = "form[data-try='GET /api/v1/jobs']";
        browser.click(&format!("details:has({form}) summary")).await;
        browser.type_into(&format!("{form} input[name=limit]"), "1").await;
        browser.click(&format!("{form} button")).await;
        browser.wait_for(&format!("{form} pre"), "\"limit\": 1").await;
        browser.wait_for(&format!("{form} pre"), "\"agent\": \"coder\"").await;
        browser.check("api-tried").await;
        browser.look(Look::PHONE.dark()).await;
        browser.check("api-phone-dark").await;
    });
}
