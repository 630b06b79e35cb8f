/* Declarations shared by the files of this folder: the list of models, and the listeners for its changes. */
#ifndef TENON_SERVE_CATALOG_H
#define TENON_SERVE_CATALOG_H

#include "serve/http/http.h"

/* Notifies all listeners of GET /models/sse that a model's state has changed. */
void models_announce(struct served *served, const char *state);
bool catalog_find_download(const char *repo, char *path, size_t size); /* in the cache of downloads */
bool catalog_has_downloads(void);                                      /* whether the cache holds a model */
void models_drop(struct served *served);                               /* frees an entry that is not loaded */

#endif
