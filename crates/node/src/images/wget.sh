#!/bin/sh
# busybox 1.35's wget crashes when -T is given, so `timeout` keeps the time instead. All other options are its own.
limit=
n=$#
while [ "$n" -gt 0 ]; do
    arg=$1
    shift
    n=$((n - 1))
    value=
    case $arg in
    --timeout=*)
        limit=${arg#*=}
        continue
        ;;
    --timeout)
        limit=${1-}
        [ "$n" -gt 0 ] && shift && n=$((n - 1))
        continue
        ;;
    --header | --post-data | --post-file | --output-document | --output-file | --directory-prefix | --user-agent | --tries)
        value=next
        ;;
    --* | - | [!-]*) ;;
    *)
        kept=-
        rest=${arg#-}
        while [ -n "$rest" ]; do
            after=${rest#?}
            letter=${rest%"$after"}
            case $letter in
            T)
                limit=$after
                if [ -z "$after" ] && [ "$n" -gt 0 ]; then
                    limit=$1
                    shift
                    n=$((n - 1))
                fi
                rest=
                ;;
            [OoPYUt])
                kept=$kept$rest
                [ -z "$after" ] && value=next
                rest=
                ;;
            *)
                kept=$kept$letter
                rest=$after
                ;;
            esac
        done
        [ "$kept" = - ] && continue
        arg=$kept
        ;;
    esac
    set -- "$@" "$arg"
    if [ -n "$value" ] && [ "$n" -gt 0 ]; then
        value=$1
        shift
        n=$((n - 1))
        set -- "$@" "$value"
    fi
done
case $limit in
'' | 0) exec busybox wgeT "$@" ;;
*[!0-9]*)
    echo "wget: invalid number '$limit'" >&2
    exit 1
    ;;
esac
busybox timeout "$limit" busybox wgeT "$@"
code=$?
[ "$code" -eq 143 ] || exit "$code"
echo "wget: download timed out" >&2
exit 1
