//! Typed objects to JSON, with the nulls and numbers that Kubernetes writes.
//!
//! In Go a time that is no pointer is written as null where it is not set (`lastProbeTime` of a condition), and so
//! is a list without omitempty (`rules` of a Role). The typed objects omit such fields; this encoder adds them.
//! And `fieldsV1`, which typed objects have as text, is written as the object that it is.

use schemars::JsonSchema;
use serde::ser::{
    Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct,
    Serializer,
};
use serde_json::Value;
use serde_json::value::RawValue;

use super::value::{FIELDS_V1, integral, is_unset, null_index, to_plain_value};
use crate::descriptors::{self, Place, TypeDescriptor};

/// A value that is written with its nulls, and where it is.
pub struct WithNulls<'a, T: ?Sized>(&'a T, Place);

impl<'a, T: JsonSchema + ?Sized> WithNulls<'a, T> {
    pub fn new(value: &'a T) -> Self {
        WithNulls(value, Place::of::<T>())
    }
}

impl<'a, T: ?Sized> WithNulls<'a, T> {
    /// Of an object of a kind.
    pub fn of_kind(value: &'a T, api_version: &str, kind: &str) -> Self {
        WithNulls(
            value,
            descriptors::of_kind(api_version, kind).map_or(Place::Unknown, Place::Of),
        )
    }
}

impl<T: Serialize + ?Sized> Serialize for WithNulls<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Writer(serializer, self.1))
    }
}

/// Forwards everything to `S`, and itself into every nested value.
struct Writer<S>(S, Place);

/// A list, map or struct that is being written.
struct Compound<S> {
    inner: S,
    /// Where its values are.
    place: Place,
    /// Fields that are still to be written, as null if nothing else comes.
    nulls: &'static [&'static str],
    written: u64,
}

macro_rules! pass_on {
    ($($method:ident($($arg:ident: $t:ty),*);)*) => {$(
        fn $method(self, $($arg: $t),*) -> Result<S::Ok, S::Error> {
            self.0.$method($($arg),*)
        }
    )*};
}

impl<S: Serializer> Serializer for Writer<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Compound<S::SerializeSeq>;
    type SerializeTuple = Compound<S::SerializeTuple>;
    type SerializeTupleStruct = Compound<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Impossible<S::Ok, S::Error>;
    type SerializeMap = Compound<S::SerializeMap>;
    type SerializeStruct = Compound<S::SerializeStruct>;
    type SerializeStructVariant = Impossible<S::Ok, S::Error>;

    pass_on! {
        serialize_bool(v: bool);
        serialize_i8(v: i8);
        serialize_i16(v: i16);
        serialize_i32(v: i32);
        serialize_i64(v: i64);
        serialize_u8(v: u8);
        serialize_u16(v: u16);
        serialize_u32(v: u32);
        serialize_u64(v: u64);
        serialize_f32(v: f32);
        serialize_char(v: char);
        serialize_str(v: &str);
        serialize_bytes(v: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    /// Go writes an integral number without a fraction, whatever its type.
    fn serialize_f64(self, v: f64) -> Result<S::Ok, S::Error> {
        match integral(v) {
            Some(whole) => self.0.serialize_i64(whole),
            None => self.0.serialize_f64(v),
        }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&WithNulls(value, self.1))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        match raw_fields(name, value) {
            Some(raw) => raw.serialize(self.0),
            None => self.0.serialize_newtype_struct(name, &WithNulls(value, self.1)),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0
            .serialize_newtype_variant(name, index, variant, &WithNulls(value, self.1))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        let inner = self.0.serialize_seq(len)?;
        Ok(Compound::new(inner, self.1))
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        let inner = self.0.serialize_tuple(len)?;
        Ok(Compound::new(inner, self.1))
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        let inner = self.0.serialize_tuple_struct(name, len)?;
        Ok(Compound::new(inner, self.1))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        Err(no_variants(variant))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        let inner = self.0.serialize_map(len)?;
        Ok(Compound::new(inner, self.1))
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        let of = self.1.of_struct(name);
        let nulls = of.map_or(&[][..], TypeDescriptor::nulls);
        // A struct of length zero would be closed at once.
        let inner = self.0.serialize_struct(name, len + nulls.len())?;
        Ok(Compound {
            nulls,
            ..Compound::new(inner, of.map_or(Place::Unknown, Place::Below))
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        Err(no_variants(variant))
    }
}

/// The text of a `fieldsV1` (see `managed_fields::text`), to be written as the object that it is.
fn raw_fields<T: Serialize + ?Sized>(name: &str, value: &T) -> Option<Box<RawValue>> {
    if name != FIELDS_V1 {
        return None;
    }
    match to_plain_value(value) {
        Ok(Value::String(text)) => RawValue::from_string(text).ok(),
        _ => None,
    }
}

/// No type of Kubernetes is written as a variant with fields.
fn no_variants<E: serde::ser::Error>(variant: &str) -> E {
    E::custom(format!("unexpected variant {variant}"))
}

impl<S> Compound<S> {
    fn new(inner: S, place: Place) -> Self {
        Compound {
            inner,
            place,
            nulls: &[],
            written: 0,
        }
    }
}

impl<S: SerializeStruct> SerializeStruct for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), S::Error> {
        if let Some(i) = null_index(self.nulls, key) {
            if is_unset(value) {
                return Ok(());
            }
            self.written |= 1 << i;
        }
        self.inner.serialize_field(key, &WithNulls(value, self.place))
    }

    fn end(mut self) -> Result<S::Ok, S::Error> {
        for (i, field) in self.nulls.iter().enumerate() {
            if self.written & (1 << i) == 0 {
                self.inner.serialize_field(field, &None::<()>)?;
            }
        }
        self.inner.end()
    }
}

impl<S: SerializeSeq> SerializeSeq for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_element(&WithNulls(value, self.place))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeTuple> SerializeTuple for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_element(&WithNulls(value, self.place))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeTupleStruct> SerializeTupleStruct for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_field(&WithNulls(value, self.place))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeMap> SerializeMap for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.inner.serialize_key(key)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_value(&WithNulls(value, self.place))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerState, Pod};
    use k8s_openapi::api::rbac::v1::Role;
    use serde_json::json;

    use super::*;

    fn encoded<T: Serialize + JsonSchema>(value: &T) -> Value {
        serde_json::from_str(&serde_json::to_string(&WithNulls::new(value)).unwrap()).unwrap()
    }

    #[test]
    fn empty_lists_and_the_fields_of_one_name_in_two_groups_are_null_as_their_kinds_have_it() {
        use k8s_openapi::api::{autoscaling, core, events, storage};
        assert_eq!(
            encoded(&storage::v1::CSINodeSpec::default()),
            json!({"drivers": null})
        );
        let hpa = autoscaling::v2::HorizontalPodAutoscalerStatus::default();
        assert!(encoded(&hpa).get("currentMetrics").is_some_and(Value::is_null));
        let hpa = autoscaling::v1::HorizontalPodAutoscalerStatus::default();
        assert_eq!(encoded(&hpa).get("currentMetrics"), None);
        let null = Some(&Value::Null);
        let old = encoded(&core::v1::Event::default());
        assert_eq!(
            (old.get("firstTimestamp"), old.get("deprecatedFirstTimestamp")),
            (null, None)
        );
        let new = encoded(&events::v1::Event::default());
        assert_eq!(
            (new.get("firstTimestamp"), new.get("deprecatedFirstTimestamp")),
            (None, null)
        );
    }

    #[test]
    fn times_that_are_not_set_are_null() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
            "status": {"conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "2020-01-01T00:00:00Z"}]}});
        let mut want = pod.clone();
        want["status"]["conditions"][0]["lastProbeTime"] = Value::Null;
        assert_eq!(encoded(&serde_json::from_value::<Pod>(pod).unwrap()), want);
        let state: ContainerState = serde_json::from_value(json!({"running": {}})).unwrap();
        assert_eq!(encoded(&state), json!({"running": {"startedAt": null}}));
    }

    #[test]
    fn a_role_without_rules_has_null_rules() {
        assert_eq!(encoded(&Role::default())["rules"], Value::Null);
        assert!(
            encoded(&Role::default())
                .as_object()
                .unwrap()
                .contains_key("rules")
        );
    }

    #[test]
    fn integral_numbers_have_no_fraction() {
        let numbers = [1.0, -3.0, 0.5, 9_007_199_254_740_992.0, 1e300, 0.0];
        let written = serde_json::to_string(&WithNulls::new(&numbers)).unwrap();
        assert_eq!(written, "[1,-3,0.5,9007199254740992,1e+300,0]");
    }
}
