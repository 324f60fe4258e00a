//! Answers, and the lines of a watch, in the form of kube-apiserver.

use std::time::{Duration, SystemTime};

use axum::{body::Body, response::Response};
use serde_json::json;

use super::RetryAfter;

pub(super) fn event(event_type: &str, object: &str) -> String {
    format!("{{\"type\":\"{event_type}\",\"object\":{object}}}\n")
}

pub(super) fn bookmark(version: &str, ends_initial_events: bool) -> String {
    let mut metadata = json!({"resourceVersion": version});
    if ends_initial_events {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    event("BOOKMARK", &format!(r#"{{"kind":"Widget","apiVersion":"example.com/v1","metadata":{metadata}}}"#))
}

pub(super) fn success(body: String) -> Response {
    Response::builder().header("content-type", "application/json").body(Body::from(body)).unwrap()
}

pub(super) fn too_large() -> Response {
    let causes = json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]});
    let status = json!({
        "kind": "Status", "status": "Failure", "reason": "Timeout", "code": 504,
        "message": "Timeout: Too large resource version", "details": causes,
    });
    Response::builder().status(504).body(Body::from(status.to_string())).unwrap()
}

pub(super) fn failure(code: u16, retry_after: RetryAfter, reason: &str, text: &str) -> Response {
    let status = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": text});
    let mut response = Response::builder().status(code);
    match retry_after {
        RetryAfter::None => {}
        RetryAfter::Seconds(seconds) => response = response.header("retry-after", seconds),
        RetryAfter::Date(seconds) => {
            response = response.header("retry-after", http_date(SystemTime::now() + Duration::from_secs(seconds)));
        }
    }
    response.body(Body::from(status.to_string())).unwrap()
}

/// Formats a date by RFC 9110: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 1970 into year, month and day (Howard Hinnant's civil_from_days, for years from 1970 on).
    let shifted = days + 719_468;
    let era_day = shifted % 146_097;
    let year_of_era = (era_day - era_day / 1_460 + era_day / 36_524 - era_day / 146_096) / 365;
    let day_of_year = era_day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + shifted / 146_097 * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}
