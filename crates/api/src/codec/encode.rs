//! Typed objects to JSON, with the nulls and numbers that Kubernetes writes.
//!
//! In Go a time that is no pointer is written as null where it is not set (`lastProbeTime` of a condition), and so
//! is a list without omitempty (`rules` of a Role). The typed objects leave such fields out; here they are put back.

use serde::ser::{
    Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct,
    Serializer,
};

/// Fields that are null where they are not set, by the struct's name.
const NULLS: &[(&str, &[&str])] = &[
    ("ClusterRole", &["rules"]),
    ("ContainerStateRunning", &["startedAt"]),
    ("ContainerStateTerminated", &["startedAt", "finishedAt"]),
    ("CustomResourceDefinitionStatus", &["conditions"]),
    ("EndpointSlice", &["ports"]),
    // Of events.k8s.io and of the core group: see [`belongs`].
    (
        "Event",
        &[
            "eventTime",
            "firstTimestamp",
            "lastTimestamp",
            "deprecatedFirstTimestamp",
            "deprecatedLastTimestamp",
        ],
    ),
    ("JobCondition", &["lastProbeTime", "lastTransitionTime"]),
    ("NodeCondition", &["lastHeartbeatTime", "lastTransitionTime"]),
    (
        "PersistentVolumeClaimCondition",
        &["lastProbeTime", "lastTransitionTime"],
    ),
    ("PodCondition", &["lastProbeTime", "lastTransitionTime"]),
    ("Role", &["rules"]),
];

/// Lists of which Go tells a missing one from an empty one and the types here do not; people leave them out.
const EMPTY_IS_NULL: &[(&str, &str)] = &[("CSINodeSpec", "drivers"), ("LimitRangeSpec", "limits")];

/// Two types are called Event. Only the core group's has an involved object, always.
const CORE_EVENT: &str = "involvedObject";

/// Whether a struct has this field at all.
fn belongs(field: &str, core_event: bool) -> bool {
    match field {
        "firstTimestamp" | "lastTimestamp" => core_event,
        "deprecatedFirstTimestamp" | "deprecatedLastTimestamp" => !core_event,
        _ => true,
    }
}

/// Up to here every whole number is a double's exact value: 2^53.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// A value that is written with its nulls.
pub(crate) struct WithNulls<'a, T: ?Sized>(pub(crate) &'a T);

impl<T: Serialize + ?Sized> Serialize for WithNulls<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Writer(serializer))
    }
}

/// Passes everything on to `S`, and itself into every value inside.
struct Writer<S>(S);

/// A list, map or struct that is being written.
struct Compound<S> {
    inner: S,
    /// Fields that are still to be written, as null if nothing else comes.
    nulls: &'static [&'static str],
    written: u8,
    empty_is_null: Option<&'static str>,
    core_event: bool,
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

    /// Go writes a whole number as one, whatever its type.
    fn serialize_f64(self, v: f64) -> Result<S::Ok, S::Error> {
        match v.fract() == 0.0 && v.abs() <= WHOLE_MAX {
            true => self.0.serialize_i64(v as i64),
            false => self.0.serialize_f64(v),
        }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&WithNulls(value))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &WithNulls(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0
            .serialize_newtype_variant(name, index, variant, &WithNulls(value))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.0.serialize_seq(len).map(Compound::new)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.0.serialize_tuple(len).map(Compound::new)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.0.serialize_tuple_struct(name, len).map(Compound::new)
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
        self.0.serialize_map(len).map(Compound::new)
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        let nulls = NULLS
            .iter()
            .find(|(of, _)| *of == name)
            .map_or(&[][..], |(_, fields)| *fields);
        let empty_is_null = EMPTY_IS_NULL.iter().find(|(of, _)| *of == name);
        Ok(Compound {
            nulls,
            empty_is_null: empty_is_null.map(|(_, field)| *field),
            // A struct of length zero would be closed at once.
            ..Compound::new(self.0.serialize_struct(name, len + nulls.len())?)
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

/// No type of Kubernetes is written as a variant with fields.
fn no_variants<E: serde::ser::Error>(variant: &str) -> E {
    E::custom(format!("unexpected variant {variant}"))
}

impl<S> Compound<S> {
    fn new(inner: S) -> Self {
        Compound {
            inner,
            nulls: &[],
            written: 0,
            empty_is_null: None,
            core_event: false,
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
        if let Some(i) = self.nulls.iter().position(|field| *field == key) {
            self.written |= 1 << i;
        }
        self.core_event |= key == CORE_EVENT;
        if self.empty_is_null == Some(key)
            && serde_json::to_value(value).is_ok_and(|v| v == serde_json::json!([]))
        {
            return self.inner.serialize_field(key, &None::<()>);
        }
        self.inner.serialize_field(key, &WithNulls(value))
    }

    fn end(mut self) -> Result<S::Ok, S::Error> {
        for (i, field) in self.nulls.iter().enumerate() {
            if self.written & (1 << i) == 0 && belongs(field, self.core_event) {
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
        self.inner.serialize_element(&WithNulls(value))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeTuple> SerializeTuple for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_element(&WithNulls(value))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

impl<S: SerializeTupleStruct> SerializeTupleStruct for Compound<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_field(&WithNulls(value))
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
        self.inner.serialize_value(&WithNulls(value))
    }
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerState, Pod};
    use k8s_openapi::api::rbac::v1::Role;
    use serde_json::{Value, json};

    use super::*;

    fn encoded<T: Serialize>(value: &T) -> Value {
        serde_json::from_str(&serde_json::to_string(&WithNulls(value)).unwrap()).unwrap()
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
    fn a_role_without_rules_says_so() {
        assert_eq!(encoded(&Role::default())["rules"], Value::Null);
        assert!(
            encoded(&Role::default())
                .as_object()
                .unwrap()
                .contains_key("rules")
        );
    }

    #[test]
    fn whole_numbers_have_no_fraction() {
        let numbers = [1.0, -3.0, 0.5, 9_007_199_254_740_992.0, 1e300, 0.0];
        let written = serde_json::to_string(&WithNulls(&numbers)).unwrap();
        assert_eq!(written, "[1,-3,0.5,9007199254740992,1e+300,0]");
    }
}
