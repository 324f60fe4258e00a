package main

// exceptions are the parts that do not pass over informerd, with the reason.
var exceptions = func() map[string]string {
	byName := map[string]string{}
	for reason, names := range reasons {
		for _, name := range names {
			byName[name] = reason
		}
	}
	return byName
}()

// reasons are those of the exceptions, each with its names.
var reasons = map[string][]string{
	"a continue token is opaque: this part makes one of etcd3, or expects one": {
		"ConsistentList/List_with_negative_continue_RV_returns_consistent_RV",
		"List/filter_returns_one_item_for_last_page,_ends_on_last_item,_not_full",
		"List/filter_returns_one_item_for_last_page,_starts_on_last_item,_full",
		"List/filter_returns_one_item_for_last_page,_starts_on_last_item,_partial_page",
		"List/ignores_resource_version_0_for_List_with_pregenerated_continue_token",
		"List/test_List_with_continue,_resource_version_after_writes",
		"List/test_List_with_continue,_resource_version_before_first_write",
		"List/test_List_with_continue,_resource_version_of_fifth_write",
		"List/test_List_with_continue,_resource_version_of_first_write",
		"List/test_List_with_continue,_resource_version_of_second_write",
		"List/test_List_with_continue,_resource_version_of_seventh_write",
		"List/test_List_with_continue,_resource_version_of_six_write",
		"List/test_List_with_continue,_resource_version_of_third_write",
		"List/test_List_with_continue_from_second_pod,_negative_resource_version_gives_consistent_read",
		"List/test_List_with_continue_from_second_pod_and_limit,_negative_resource_version_gives_consistent_read",
		"List/test_List_with_continue_from_third_pod,_negative_resource_version_gives_consistent_read",
		"List/test_List_with_limit",
		"List/test_List_with_limit,_resource_version_after_writes,_match=Exact",
		"List/test_List_with_limit,_resource_version_of_fifth_write,_match=Exact",
		"List/test_List_with_limit,_resource_version_of_second_write,_match=Exact",
		"List/test_List_with_limit,_resource_version_of_seventh_write,_match=Exact",
		"List/test_List_with_limit,_resource_version_of_six_write,_match=Exact",
		"List/test_List_with_limit,_resource_version_of_third_write,_match=Exact",
		"List/test_List_with_limit_at_current_resource_version",
		"List/test_List_with_limit_at_current_resource_version_and_match=Exact",
		"List/test_List_with_pregenerated_continue_token",
	},
	"remainingItemCount is that of lists of all namespaces: for one, informerd would count its objects": {
		"List/test_List_with_limit_at_current_resource_version_and_match=NotOlderThan",
	},
	"a page after which nothing more matches has no token: etcd3 sends one, and then an empty page": {
		"List/test_List_with_filter_returning_only_one_item,_ensure_only_a_single_page_returned",
		"List/test_List_with_filter_returning_only_one_item,_ensure_only_a_single_page_returned_with_current_resource_version_and_match=NotOlderThan",
		"List/test_List_with_filter_returning_two_items,_more_pages_possible",
		"List/test_List_with_filter_returning_two_items,_more_pages_possible_with_current_resource_version_and_match=NotOlderThan",
	},
	"the history of informerd reaches back beyond etcd's compaction": {
		"List/test_List_on_existing_key_with_resource_version_set_before_first_write,_match=Exact",
		"List/test_List_with_resource_version_set_before_first_write,_match=Exact",
	},
	"the suite skips this part for a watch cache": {
		"List/test_List_with_limit_at_resource_version_0",
		"List/test_List_with_limit_at_resource_version_0_match=NotOlderThan",
	},
	"a list of any version has no pages, as in the watch cache, which does not run this test either": {
		"ListInconsistentContinuation",
	},
	"values in etcd are served as they are, and never fail to be decrypted; the watch cache does not run this test either": {
		"TransformationFailure",
		"WatchError",
		"WatchErrorIsBlockingFurtherEvents",
		"WatchWithUnsafeDelete",
	},
	"an object without a name is not served": {
		"KeySchema",
	},
}
