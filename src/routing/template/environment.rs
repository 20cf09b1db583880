//! The Jinja environment of transformers: its settings, globals, filters and Python's methods.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat;

use super::{filters, python, tojson};

/// Bounds one rendering: about one unit for each step of the template and each 64 bytes
/// copied. A 100,000-token conversation of 1,000 messages takes well under a million.
const FUEL: u64 = 10_000_000;

/// The white space rules of transformers.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
}

/// An environment without templates.
pub(super) fn new() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax()?);
    environment.set_debug(false);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(|out, _state, value| {
        out.write_str(&python::text_of(value))?;
        Ok(())
    });
    environment.set_unknown_method_callback(method);
    filters::add(&mut environment);
    environment.add_filter("tojson", tojson::filter);
    environment.add_filter("string", |value: &Value| {
        python::text_of(value).into_owned()
    });
    environment.add_function(
        "raise_exception",
        |message: &Value| -> Result<Value, Error> {
            Err(Error::new(
                ErrorKind::InvalidOperation,
                python::text_of(message).into_owned(),
            ))
        },
    );
    Ok(environment)
}

/// The time as Python's `datetime.now().strftime` prints it, in the zone of this machine (the
/// engine's pod is taken to have the same).
pub(super) fn strftime(unix_time: i64, format: &str) -> Result<String, Error> {
    let failed = |error: jiff::Error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now({format:?}): {error}"),
        )
    };
    let now = Timestamp::from_second(unix_time)
        .map_err(failed)?
        .to_zoned_datetime(TimeZone::system());
    jiff::fmt::strtime::format(format, &now).map_err(failed)
}

/// Python's methods: those of minijinja-contrib, and where they differ from Python, ours.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            "strip" | "lstrip" | "rstrip" => return strip(text, name, args),
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "splitlines" if args.is_empty() => {
                return Ok(python::lines(text).map(Value::from).collect());
            }
            _ => {}
        }
    }
    if value.kind() == ValueKind::Map && name == "copy" {
        let (): () = from_args(args)?;
        return Ok(value.clone());
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn strip(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (chars, kwargs): (Option<&str>, Kwargs) = from_args(args)?;
    kwargs.assert_all_used()?;
    let goes = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => python::is_space(c),
    };
    Ok(Value::from(match name {
        "lstrip" => text.trim_start_matches(goes),
        "rstrip" => text.trim_end_matches(goes),
        _ => text.trim_matches(goes),
    }))
}
