"""What happens to a broker whose clients lie, flood, dawdle and die: nothing.

Every case of bad input that we know of, what must follow, and the tests that show it: their module
and, without `test_`, their name. `test_cases` checks that they exist.

 1  Lengths of -1, 0, 3, 2**31-1: closed, no memory, logged once for each peer
      test_framing: an_impossible_length_closes_the_connection
      test_framing: a_length_that_arrives_byte_by_byte_is_checked_as_well
      test_framing: a_peer_that_violates_again_and_again_is_logged_once
 2  A length over the limit: closed; 500 connections at a byte a second: closed, others served
      test_framing: an_impossible_length_closes_the_connection
      test_framing: a_large_length_alone_costs_no_memory
      test_framing: requests_that_trickle_in_are_ended_and_nobody_else_notices
 4  Keys and versions that do not exist: closed; ApiVersions: version 0 with the whole table
      test_framing: an_unknown_key_closes_the_connection
      test_framing: a_version_beyond_the_newest_or_below_the_oldest_closes_the_connection
      test_framing: an_unknown_version_of_api_versions_is_answered_in_version_0_with_the_whole_table
 5  Bodies cut at every byte, bytes behind them, varints and lengths and nulls that cannot be
      test_bodies: a_body_cut_anywhere_closes_the_connection
      test_framing: a_header_cut_anywhere_closes_the_connection
      test_bodies: bytes_behind_the_body_are_tolerated
      test_bodies: what_no_encoder_writes_closes_the_connection
 6  Counts of 2**31-1 and 2**28 at every byte, arrays in arrays, a million tags: refused, no memory
      test_bodies: a_huge_count_anywhere_in_a_small_request_is_refused_at_once_and_costs_nothing
      test_bodies: tag_sections_that_make_no_sense_are_refused_at_once
      test_bodies: millions_of_tiny_elements_do_not_become_millions_of_objects
      test_largest_requests: no_request_of_any_api_costs_the_others_their_broker
      test_largest_requests: no_request_of_any_api_keeps_the_loop_busy_for_a_second
 7  Batches with a wrong CRC, length, count, sequence, magic or codec: a typed error, no append
      test_batches: a_batch_that_lies_is_refused_and_nothing_is_appended
 8  Bombs of zstd, gzip, lz4, snappy: refused in less than 32 MB
      test_batches: a_bomb_that_is_searched_by_time_goes_off_in_a_small_room
      test_batches: a_bomb_that_must_be_recompressed_is_refused
      test_batches: a_search_through_batches_that_lie_about_their_time_ends_soon
 9  Connections over the limits, thousands whose other side has died: refused, swept, none left
      test_connections: connections_beyond_the_limit_are_closed_at_once_and_leave_nothing
      test_connections: thousands_of_connections_most_of_them_dead_are_limited_and_swept
      test_connections: connections_take_only_their_share_of_descriptors
      test_connections: silent_connections_are_swept_and_waiting_ones_are_not
      test_connections: a_thousand_comings_and_goings_leak_no_descriptor
10  10,000 requests without listening: back pressure, then answers in their order
      test_connections: requests_without_listening_meet_back_pressure_and_then_ordered_answers
      test_connections: a_client_that_never_reads_its_answers_is_swept
      test_connections: one_flooding_client_does_not_starve_another
11  Fetches that wait for ever, of 100,000 partitions, of topics unknown: clamped, typed errors
      test_fetches: a_fetch_that_would_wait_for_ever_does_not_hold_up_anybody
      test_fetches: a_fetch_waits_no_longer_than_the_broker_allows
      test_fetches: a_hundred_thousand_unknown_partitions_get_as_many_answers
      test_fetches: one_partition_asked_for_a_hundred_thousand_times_does_not_stop_the_loop
12  A client that poses as a replica: refused, the high watermark stays
      test_fetches: who_says_that_it_is_a_replica_is_not_believed
      test_fetches: who_says_so_in_a_tagged_field_is_not_believed_either
13  Topic names that are paths, too long, or not names: refused, nothing outside of the data
      test_names: a_name_that_is_no_topic_name_is_refused_everywhere
21  Settings unknown, or with classes, paths and addresses in them: refused, nothing opened
      test_names: a_setting_that_does_not_exist_or_makes_no_sense_is_refused
      test_names: a_setting_that_names_a_file_or_a_url_opens_neither
      test_names: settings_of_what_has_none_are_refused
22  Producers with an old epoch, a gap, a repeated batch: fenced, refused, answered once
      test_batches: producers_are_fenced_by_epoch_and_held_to_their_sequence
23  Empty arrays in every request: a valid answer
      test_bodies: empty_arrays_in_every_request_get_a_valid_answer
25  `kill -9` during all of this: starts again, with everything acknowledged
      test_kills: a_kill_during_an_attack_costs_nothing_that_was_acknowledged
--  100,000 mutations of recorded and random requests: nobody but their sender notices
      test_mutants: mutated_requests_hurt_nobody_but_their_sender

Not here, because there is nothing to attack yet: authentication and authorisation (cases 3 and 14
to 19), quotas (20), delayed messages (24). How long the control client's round trips took is shown
as figures: on a machine that others use, a time decides nothing.
"""
