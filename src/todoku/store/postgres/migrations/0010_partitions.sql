-- Only the owner of the history may make and drop its partitions, and these two functions do. They run as their owner, so
-- that a worker needs no more than rights on rows, and the right to call them. They look in the schema of todoku and
-- nowhere else: what a caller has made in another schema, or for its session, is not found. They write the bounds of a
-- partition as text, which is read again: in UTC and ISO, or India's "IST" might be read as Israel's.
do $do$
declare name text;
begin
    foreach name in array array['todoku_history_ahead(integer)', 'todoku_history_drop(timestamptz)'] loop
        execute format(
            'alter function %s security definer set search_path = %I, pg_temp set timezone = ''UTC'' set datestyle = ''ISO''',
            name, current_schema());
        execute format('revoke execute on function %s from public', name);
    end loop;
end $do$;
