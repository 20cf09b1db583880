//! Filters whose arguments or failures differ between Jinja and minijinja, as Jinja has them.

use minijinja::value::{Kwargs, Rest, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::python;

/// Replaces them in an environment.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("sort", sort);
    environment.add_filter("indent", indent);
    environment.add_filter("trim", trim);
}

/// The arguments of a call, each given by its place or by its name.
fn arguments<const N: usize>(
    given: Rest<ValueOrKwargs>,
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let given = given.into_values();
    let (placed, named) = match given.split_last() {
        Some((last, placed)) if last.is_kwargs() => (placed, std::slice::from_ref(last)),
        _ => (given.as_slice(), [].as_slice()),
    };
    let (kwargs,): (Kwargs,) = from_args(named)?;
    let mut found = [const { None }; N];
    for (n, (slot, name)) in found.iter_mut().zip(names).enumerate() {
        *slot = match placed.get(n) {
            Some(value) => Some(value.clone()),
            None => kwargs.get(name)?,
        };
    }
    kwargs.assert_all_used()?;
    Ok(found)
}

fn no_kwargs() -> Kwargs {
    std::iter::empty::<(&str, Value)>().collect()
}

fn is_true(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

/// `int(default=0)`: the default where Python cannot convert, never an error.
fn int(state: &State<'_, '_>, value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [default, base] = arguments(rest, ["default", "base"])?;
    let default = default.unwrap_or_else(|| Value::from(0));
    let base = base.map(u32::try_from).transpose()?;
    Ok(filters::int(state, value, Some(default.clone()), base, no_kwargs()).unwrap_or(default))
}

/// `float(default=0.0)`: the default where Python cannot convert, never an error.
fn float(state: &State<'_, '_>, value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [default] = arguments(rest, ["default"])?;
    let default = default.unwrap_or_else(|| Value::from(0.0));
    Ok(filters::float(state, value, Some(default.clone()), no_kwargs()).unwrap_or(default))
}

/// `default(default_value='', boolean=false)`.
fn default(value: &Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [other, boolean] = arguments(rest, ["default_value", "boolean"])?;
    let missing = value.is_undefined() || (is_true(boolean) && !value.is_true());
    Ok(if missing {
        other.unwrap_or_else(|| Value::from(""))
    } else {
        value.clone()
    })
}

/// `sort(reverse=false, case_sensitive=false, attribute=none)`.
fn sort(state: &State<'_, '_>, value: Value, rest: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let names = ["reverse", "case_sensitive", "attribute"];
    let named: Kwargs = names
        .into_iter()
        .zip(arguments(rest, names)?)
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
    filters::sort(state, value, named)
}

/// `indent(width=4, first=false, blank=false)`: unlike minijinja's, it keeps a last line break.
fn indent(
    state: &State<'_, '_>,
    value: &Value,
    rest: Rest<ValueOrKwargs>,
) -> Result<String, Error> {
    let [width, first, blank] = arguments(rest, ["width", "first", "blank"])?;
    let indentation = match width
        .as_ref()
        .map(|width| (width.as_str(), width.as_usize()))
    {
        None => "    ".to_owned(),
        Some((Some(text), _)) => text.to_owned(),
        Some((None, Some(width))) if width <= MAX_WIDTH => " ".repeat(width),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "indent takes a number of columns or a string",
            ));
        }
    };
    let (first, blank) = (is_true(first), is_true(blank));
    let text = python::text_of(value).into_owned() + "\n";
    let mut out = String::with_capacity(text.len());
    for (n, line) in python::lines(&text).enumerate() {
        if n > 0 {
            out.push('\n');
        }
        if (n == 0 && first) || (n > 0 && (blank || !line.is_empty())) {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    state.consume_fuel(out.len() as u64 / 64)?;
    Ok(out)
}

/// Wider indentation is a mistake or an attack.
const MAX_WIDTH: usize = 1024;

/// `trim(chars=none)`: Python's `strip`.
fn trim(value: &Value, rest: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [chars] = arguments(rest, ["chars"])?;
    let text = python::text_of(value);
    Ok(match chars.as_ref().and_then(Value::as_str) {
        Some(chars) => text.trim_matches(|c| chars.contains(c)),
        None => text.trim_matches(python::is_space),
    }
    .to_owned())
}
