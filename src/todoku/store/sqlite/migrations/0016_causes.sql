-- Dead letters by cause: groups are counted from this index alone.
create index todoku_delivery_cause on todoku_delivery (reason, destination, fingerprint, updated_at)
    where status = 'aborted';
